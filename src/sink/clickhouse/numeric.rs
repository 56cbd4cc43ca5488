//! PostgreSQL's binary numeric: base-10000 digits, to ClickHouse's decimals or to PostgreSQL's own text. Pure, exact.
//!
//! Source: src/backend/utils/adt/numeric.c, numeric_send.

use super::encode::ValueError;

const NEGATIVE: u16 = 0x4000;
const NAN: u16 = 0xC000;
const POSITIVE_INFINITY: u16 = 0xD000;
const NEGATIVE_INFINITY: u16 = 0xF000;

/// The fields of a numeric, checked.
#[derive(Clone, Copy, Debug)]
pub struct Numeric<'a> {
    /// Power of 10000 of the first digit.
    weight: i32,
    sign: u16,
    /// Digits behind the point that the text shows.
    display_scale: u16,
    /// Two big-endian bytes a digit.
    digits: &'a [u8],
}

impl<'a> Numeric<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ValueError> {
        let (head, digits) = bytes.split_first_chunk::<8>().ok_or(ValueError::Malformed)?;
        let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let numeric =
            Numeric { weight: i32::from(word(2) as i16), sign: word(4), display_scale: word(6), digits };
        let well_formed = digits.len() == 2 * usize::from(word(0))
            && numeric.digits().all(|digit| digit < 10_000)
            && matches!(numeric.sign, 0 | NEGATIVE | NAN | POSITIVE_INFINITY | NEGATIVE_INFINITY);
        if well_formed { Ok(numeric) } else { Err(ValueError::Malformed) }
    }

    fn digits(&self) -> impl DoubleEndedIterator<Item = u16> + use<'a> {
        self.digits.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
    }

    fn is_finite(&self) -> bool {
        matches!(self.sign, 0 | NEGATIVE)
    }

    /// value * 10^scale as an integer of `width` bytes (4, 8, 16 or 32), little endian, appended to `out`.
    ///
    /// Errors when the value is not finite, has more than `scale` digits behind the point, or more than `precision` in all.
    pub fn write_decimal(&self, precision: u32, scale: u32, out: &mut Vec<u8>) -> Result<(), ValueError> {
        if !self.is_finite() {
            return Err(NOT_FINITE);
        }
        let magnitude = self.scaled(scale).ok_or(TOO_LARGE)?;
        put_magnitude(magnitude, self.sign == NEGATIVE, precision, out)
    }

    /// |value| * 10^scale, `None` when that is no integer or does not fit 256 bits.
    fn scaled(&self, scale: u32) -> Option<U256> {
        let mut digits = self.digits();
        let Some(last) = digits.next_back() else { return Some(U256::default()) };
        let leading = digits.try_fold(U256::default(), |sum, digit| sum.mul_add(10_000, u64::from(digit)))?;
        let last_weight = self.weight - (self.digits.len() as i32 / 2 - 1);
        let exponent = last_weight * 4 + scale as i32;
        if exponent >= 0 {
            let total = leading.mul_add(10_000, u64::from(last))?;
            return (0..exponent).try_fold(total, |total, _| total.mul_add(10, 0));
        }
        // Only the last base-10000 digit can reach behind the scale: PostgreSQL strips zeros, and typmods round. It is
        // cut before it is added: with it, 76 digits can be 78, which 256 bits do not hold.
        let divisor = 10u64.checked_pow(exponent.unsigned_abs()).filter(|&divisor| divisor <= 1_000)?;
        let last = u64::from(last);
        (last % divisor == 0).then(|| leading.mul_add(10_000 / divisor, last / divisor))?
    }

    /// As `numeric_out` writes it.
    pub fn write_text(&self, out: &mut Vec<u8>) {
        match self.sign {
            NAN => return out.extend_from_slice(b"NaN"),
            POSITIVE_INFINITY => return out.extend_from_slice(b"Infinity"),
            NEGATIVE_INFINITY => return out.extend_from_slice(b"-Infinity"),
            NEGATIVE => out.push(b'-'),
            _ => {}
        }
        self.write_integer_part(out);
        if self.display_scale > 0 {
            out.push(b'.');
            self.write_fraction(out);
        }
    }

    /// The base-10000 digit of 10000^weight.
    fn digit_at(&self, weight: i32) -> u16 {
        let index = self.weight - weight;
        let pair = usize::try_from(index).ok().and_then(|index| self.digits.get(2 * index..2 * index + 2));
        pair.map_or(0, |pair| u16::from_be_bytes([pair[0], pair[1]]))
    }

    fn write_integer_part(&self, out: &mut Vec<u8>) {
        let start = out.len();
        for weight in (0..=self.weight).rev() {
            let decimal = four_digits(self.digit_at(weight));
            let skip =
                if out.len() == start { decimal.iter().take_while(|&&c| c == b'0').count() } else { 0 };
            out.extend_from_slice(&decimal[skip..]);
        }
        if out.len() == start {
            out.push(b'0');
        }
    }

    fn write_fraction(&self, out: &mut Vec<u8>) {
        let end = out.len() + usize::from(self.display_scale);
        let mut weight = -1;
        while out.len() < end {
            out.extend_from_slice(&four_digits(self.digit_at(weight)));
            weight -= 1;
        }
        out.truncate(end);
    }
}

/// As [`Numeric::write_decimal`], from PostgreSQL's text of a numeric.
pub fn write_decimal_text(
    text: &[u8],
    precision: u32,
    scale: u32,
    out: &mut Vec<u8>,
) -> Result<(), ValueError> {
    if matches!(text, b"NaN" | b"Infinity" | b"-Infinity") {
        return Err(NOT_FINITE);
    }
    let (negative, digits) = match text.strip_prefix(b"-") {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let point = digits.iter().position(|byte| *byte == b'.').unwrap_or(digits.len());
    let (integer, fraction) = (&digits[..point], digits.get(point + 1..).unwrap_or_default());
    let kept = fraction.len().min(scale as usize);
    let all = || integer.iter().chain(fraction);
    if integer.is_empty() || !all().all(u8::is_ascii_digit) {
        return Err(ValueError::Malformed);
    }
    if fraction[kept..].iter().any(|digit| *digit != b'0') {
        return Err(TOO_LARGE);
    }
    let padding = std::iter::repeat_n(&b'0', scale as usize - kept);
    let mut digits = integer.iter().chain(&fraction[..kept]).chain(padding);
    let magnitude = digits.try_fold(U256::default(), |sum, digit| sum.mul_add(10, u64::from(digit - b'0')));
    put_magnitude(magnitude.ok_or(TOO_LARGE)?, negative, precision, out)
}

const NOT_FINITE: ValueError = ValueError::NoRepresentation("NaN and infinity have no decimal form");
const TOO_LARGE: ValueError = ValueError::NoRepresentation("does not fit the decimal");

fn put_magnitude(
    magnitude: U256,
    negative: bool,
    precision: u32,
    out: &mut Vec<u8>,
) -> Result<(), ValueError> {
    if magnitude.exceeds_digits(precision) {
        return Err(TOO_LARGE);
    }
    let signed = if negative { magnitude.negated() } else { magnitude };
    out.extend_from_slice(&signed.to_le_bytes()[..decimal_width(precision)]);
    Ok(())
}

fn four_digits(digit: u16) -> [u8; 4] {
    [digit / 1000, digit / 100 % 10, digit / 10 % 10, digit % 10].map(|d| b'0' + d as u8)
}

/// Bytes of ClickHouse's Decimal of this precision.
pub fn decimal_width(precision: u32) -> usize {
    match precision {
        0..=9 => 4,
        10..=18 => 8,
        19..=38 => 16,
        _ => 32,
    }
}

/// 256 bits, least significant word first; only what decimals need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct U256([u64; 4]);

impl U256 {
    fn mul_add(self, factor: u64, addend: u64) -> Option<U256> {
        let mut carry = u128::from(addend);
        let words = self.0.map(|word| {
            carry += u128::from(word) * u128::from(factor);
            let low = carry as u64;
            carry >>= 64;
            low
        });
        (carry == 0).then_some(U256(words))
    }

    fn exceeds_digits(self, precision: u32) -> bool {
        if self.0[1..] == [0; 3] && precision < 20 {
            return self.0[0] >= 10u64.pow(precision);
        }
        let bound = (0..precision).try_fold(U256([1, 0, 0, 0]), |bound, _| bound.mul_add(10, 0));
        bound.is_some_and(|bound| self.0.iter().rev().ge(bound.0.iter().rev()))
    }

    fn negated(self) -> U256 {
        let mut carry = true;
        U256(self.0.map(|word| {
            let (word, overflow) = (!word).overflowing_add(u64::from(carry));
            carry = overflow;
            word
        }))
    }

    fn to_le_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// weight, sign, display scale, digits, as `numeric_send` lays them out.
    fn binary(weight: i16, sign: u16, scale: u16, digits: &[u16]) -> Vec<u8> {
        let head = [digits.len() as u16, weight as u16, sign, scale];
        head.iter().chain(digits).flat_map(|word| word.to_be_bytes()).collect()
    }

    #[test]
    fn text_is_what_postgres_prints() {
        for (bytes, expected) in [
            (binary(0, 0, 0, &[]), "0"),
            (binary(0, 0, 2, &[]), "0.00"),
            (binary(0, 0, 2, &[12, 3400]), "12.34"),
            (binary(1, NEGATIVE, 0, &[1, 2]), "-10002"),
            (binary(-1, 0, 6, &[12, 3000]), "0.001230"),
            (binary(3, 0, 0, &[1]), "1000000000000"),
            (binary(-2, 0, 9, &[1, 2000]), "0.000000012"),
            (binary(0, NAN, 0, &[]), "NaN"),
            (binary(0, POSITIVE_INFINITY, 0, &[]), "Infinity"),
            (binary(0, NEGATIVE_INFINITY, 0, &[]), "-Infinity"),
        ] {
            let mut text = Vec::new();
            Numeric::parse(&bytes).unwrap().write_text(&mut text);
            assert_eq!(String::from_utf8(text).unwrap(), expected);
        }
    }

    #[test]
    fn decimals_are_exact_or_refused() {
        let decimal = |bytes: &[u8], precision, scale| {
            let mut out = Vec::new();
            Numeric::parse(bytes).and_then(|n| n.write_decimal(precision, scale, &mut out)).map(|()| out)
        };
        assert_eq!(decimal(&binary(0, 0, 2, &[12, 3400]), 4, 2), Ok(1234i32.to_le_bytes().to_vec()));
        assert_eq!(
            decimal(&binary(0, NEGATIVE, 2, &[12, 3400]), 18, 3),
            Ok((-12340i64).to_le_bytes().to_vec())
        );
        assert_eq!(decimal(&binary(2, 0, 0, &[1]), 20, 0), Ok(100_000_000i128.to_le_bytes().to_vec()));
        let wide = decimal(&binary(0, NEGATIVE, 0, &[1]), 76, 0).unwrap();
        assert_eq!(wide, [255; 32]);
        // 99,9999,…,9999.9999,…,99: with the last digit's zeros it would be 78 digits, more than 256 bits.
        let mut nines = vec![9_999; 20];
        (nines[0], nines[19]) = (99, 9_900);
        let most = (0..76).try_fold(U256::default(), |most, _| most.mul_add(10, 9)).unwrap();
        assert_eq!(decimal(&binary(9, 0, 38, &nines), 76, 38), Ok(most.to_le_bytes().to_vec()));
        let no = Err(ValueError::NoRepresentation("does not fit the decimal"));
        assert_eq!(decimal(&binary(0, 0, 2, &[12, 3400]), 3, 2), no, "too many digits");
        assert_eq!(decimal(&binary(0, 0, 2, &[12, 3400]), 4, 1), no, "would cut a digit");
        assert_eq!(decimal(&binary(-3, 0, 12, &[1]), 38, 6), no, "would cut it all");
        assert!(decimal(&binary(0, NAN, 0, &[]), 10, 2).is_err());
        assert_eq!(decimal(b"\0\x01\0\0\0\0\0\0\x27\x10", 10, 0), Err(ValueError::Malformed), "digit 10000");
        assert_eq!(decimal(b"\0\x01\0\0", 10, 0), Err(ValueError::Malformed));
    }
}
