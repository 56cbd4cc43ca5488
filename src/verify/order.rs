//! The order of keys, by their text: the same that both servers are asked for.

use std::cmp::Ordering;

/// How the texts of a key column compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOrder {
    /// Whole numbers.
    Integer,
    /// Byte by byte: text, uuid, bytea in hexadecimal, bool as `f` and `t`, time.
    Bytes,
    /// Dates and timestamps in ISO form, with `BC`, years past 9999 and infinities as PostgreSQL writes them.
    Temporal,
    /// Decimal numbers of any length; NaN after all others.
    Decimal,
    /// IEEE bits in hexadecimal, or `NaN`, which comes after all others.
    Float,
}

impl KeyOrder {
    pub fn compare(self, one: &[u8], other: &[u8]) -> Ordering {
        match self {
            KeyOrder::Bytes => one.cmp(other),
            KeyOrder::Integer | KeyOrder::Decimal => compare_decimals(one, other),
            KeyOrder::Temporal => temporal(one).cmp(&temporal(other)),
            KeyOrder::Float => float(one).total_cmp(&float(other)),
        }
    }
}

/// Compares decimal numbers in plain notation, as numeric and integers are written.
fn compare_decimals(one: &[u8], other: &[u8]) -> Ordering {
    let (a, b) = (Decimal::of(one), Decimal::of(other));
    a.class.cmp(&b.class).then_with(|| match a.class {
        Class::Negative => magnitude(&b).cmp(&magnitude(&a)),
        Class::Zero | Class::Positive => magnitude(&a).cmp(&magnitude(&b)),
        _ => Ordering::Equal,
    })
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    MinusInfinity,
    Negative,
    Zero,
    Positive,
    Infinity,
    NaN,
}

struct Decimal<'a> {
    class: Class,
    whole: &'a [u8],
    fraction: &'a [u8],
}

impl<'a> Decimal<'a> {
    fn of(text: &'a [u8]) -> Self {
        let special = |class| Decimal { class, whole: &[], fraction: &[] };
        match text {
            b"NaN" => return special(Class::NaN),
            b"Infinity" => return special(Class::Infinity),
            b"-Infinity" => return special(Class::MinusInfinity),
            _ => {}
        }
        let (sign, digits) = match text.strip_prefix(b"-") {
            Some(digits) => (Class::Negative, digits),
            None => (Class::Positive, text),
        };
        let point = digits.iter().position(|&byte| byte == b'.').unwrap_or(digits.len());
        let whole = trim_start(&digits[..point]);
        let fraction = trim_end(digits.get(point + 1..).unwrap_or_default());
        let class = if whole.is_empty() && fraction.is_empty() { Class::Zero } else { sign };
        Decimal { class, whole, fraction }
    }
}

/// Sorts as the number without its sign does.
fn magnitude<'a>(number: &Decimal<'a>) -> (usize, &'a [u8], &'a [u8]) {
    (number.whole.len(), number.whole, number.fraction)
}

fn trim_start(digits: &[u8]) -> &[u8] {
    let zeros = digits.iter().take_while(|&&digit| digit == b'0').count();
    &digits[zeros..]
}

fn trim_end(digits: &[u8]) -> &[u8] {
    let zeros = digits.iter().rev().take_while(|&&digit| digit == b'0').count();
    &digits[..digits.len() - zeros]
}

/// Year (0 and below are BC) and what follows it; infinities are years beyond all others.
fn temporal(text: &[u8]) -> (i64, &[u8]) {
    match text {
        b"infinity" => return (i64::MAX, &[]),
        b"-infinity" => return (i64::MIN, &[]),
        _ => {}
    }
    let (text, before_christ) = match text.strip_suffix(b" BC") {
        Some(text) => (text, true),
        None => (text, false),
    };
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let year = text[..digits]
        .iter()
        .fold(0i64, |year, digit| year.saturating_mul(10).saturating_add(i64::from(digit - b'0')));
    (if before_christ { 1 - year } else { year }, &text[digits..])
}

/// The number whose bits are written in 8 or 16 hexadecimal digits; anything else counts as NaN.
pub fn float(text: &[u8]) -> f64 {
    let digits = std::str::from_utf8(text).unwrap_or_default();
    match digits.len() {
        8 => u32::from_str_radix(digits, 16).map_or(f64::NAN, |bits| f64::from(f32::from_bits(bits))),
        16 => u64::from_str_radix(digits, 16).map_or(f64::NAN, f64::from_bits),
        _ => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each list is in ascending order.
    const ASCENDING: &[(KeyOrder, &[&str])] = &[
        (KeyOrder::Integer, &["-9223372036854775808", "-10", "-9", "0", "9", "10", "9223372036854775807"]),
        (
            KeyOrder::Decimal,
            &[
                "-Infinity",
                "-10.5",
                "-9.75",
                "-9.7",
                "-0.001",
                "0.00",
                "0.0009",
                "0.5",
                "9",
                "10",
                "Infinity",
                "NaN",
            ],
        ),
        (KeyOrder::Bytes, &["", "A", "B", "a", "é"]),
        (
            KeyOrder::Temporal,
            &[
                "-infinity",
                "4713-01-01 BC",
                "0001-12-31 BC",
                "0001-01-01",
                "2024-02-29",
                "9999-12-31",
                "10000-01-01",
                "infinity",
            ],
        ),
        (
            KeyOrder::Temporal,
            &[
                "2024-01-01 00:00:00+00",
                "2024-01-01 00:00:00.000001+00",
                "2024-01-01 00:00:00.5+00",
                "2024-01-01 00:00:01+00",
            ],
        ),
        (
            KeyOrder::Float,
            &["fff0000000000000", "bff0000000000000", "3ff0000000000000", "7ff0000000000000", "NaN"],
        ),
    ];

    #[test]
    fn keys_sort_as_on_the_servers() {
        for (order, texts) in ASCENDING {
            for (i, one) in texts.iter().enumerate() {
                for (j, other) in texts.iter().enumerate() {
                    assert_eq!(order.compare(one.as_bytes(), other.as_bytes()), i.cmp(&j), "{one} {other}");
                }
            }
        }
        assert_eq!(KeyOrder::Decimal.compare(b"1.50", b"1.5"), Ordering::Equal);
        assert_eq!(KeyOrder::Decimal.compare(b"-0", b"0.0"), Ordering::Equal);
    }
}
