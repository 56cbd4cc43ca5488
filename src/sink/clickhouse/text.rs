//! PostgreSQL's text form of a value, as the pinned session settings make it, to ClickHouse's bytes. Pure.
//!
//! The result equals that of the binary form to the last bit; a text that is not of the type is an error.

use std::str::FromStr;

use super::{
    encode::{ValueError, put_string, put_unix_days, put_unix_micros},
    numeric::write_decimal_text,
    types::Scalar,
};

/// Appends one value.
pub fn put_scalar(out: &mut Vec<u8>, scalar: Scalar, text: &[u8]) -> Result<(), ValueError> {
    match scalar {
        Scalar::Text | Scalar::Enum | Scalar::Jsonb | Scalar::NumericText => put_string(out, text),
        Scalar::Bool => match text {
            b"t" => out.push(1),
            b"f" => out.push(0),
            _ => return Err(ValueError::Malformed),
        },
        Scalar::Int16 => out.extend_from_slice(&parse::<i16>(text)?.to_le_bytes()),
        Scalar::Int32 => out.extend_from_slice(&parse::<i32>(text)?.to_le_bytes()),
        Scalar::Int64 => out.extend_from_slice(&parse::<i64>(text)?.to_le_bytes()),
        Scalar::UInt32 => out.extend_from_slice(&parse::<u32>(text)?.to_le_bytes()),
        Scalar::UInt64 => out.extend_from_slice(&parse::<u64>(text)?.to_le_bytes()),
        Scalar::Float32 => out.extend_from_slice(&parse::<f32>(text)?.to_le_bytes()),
        Scalar::Float64 => out.extend_from_slice(&parse::<f64>(text)?.to_le_bytes()),
        Scalar::Decimal { precision, scale } => return write_decimal_text(text, precision, scale, out),
        Scalar::Bytes => return put_bytea(out, text),
        Scalar::Uuid => return put_uuid(out, text),
        Scalar::Date32 => return put_unix_days(out, days(text)?),
        Scalar::Time64 => out.extend_from_slice(&time(text)?.to_le_bytes()),
        Scalar::DateTime64 { utc } => return put_unix_micros(out, timestamp(text, utc)?),
    }
    Ok(())
}

fn parse<T: FromStr>(text: &[u8]) -> Result<T, ValueError> {
    str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(ValueError::Malformed)
}

/// `bytea_output = hex`: `\x` and two digits a byte.
fn put_bytea(out: &mut Vec<u8>, text: &[u8]) -> Result<(), ValueError> {
    let digits = text.strip_prefix(b"\\x").ok_or(ValueError::Malformed)?;
    if digits.len() % 2 != 0 {
        return Err(ValueError::Malformed);
    }
    let start = out.len();
    put_string(out, &digits[..digits.len() / 2]);
    let body = out.len() - digits.len() / 2;
    for (place, pair) in out[body..].iter_mut().zip(digits.chunks_exact(2)) {
        match (nibble(pair[0]), nibble(pair[1])) {
            (Some(high), Some(low)) => *place = high << 4 | low,
            _ => {
                out.truncate(start);
                return Err(ValueError::Malformed);
            }
        }
    }
    Ok(())
}

fn nibble(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|digit| digit as u8)
}

fn put_uuid(out: &mut Vec<u8>, text: &[u8]) -> Result<(), ValueError> {
    if text.len() != 36 {
        return Err(ValueError::Malformed);
    }
    let mut value: u128 = 0;
    for (index, &byte) in text.iter().enumerate() {
        if matches!(index, 8 | 13 | 18 | 23) {
            if byte != b'-' {
                return Err(ValueError::Malformed);
            }
            continue;
        }
        value = value << 4 | u128::from(nibble(byte).ok_or(ValueError::Malformed)?);
    }
    out.extend_from_slice(&((value >> 64) as u64).to_le_bytes());
    out.extend_from_slice(&(value as u64).to_le_bytes());
    Ok(())
}

/// Digits up to the next byte that is none.
fn number(text: &[u8], at_most: usize) -> Result<(i64, &[u8]), ValueError> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 || digits > at_most {
        return Err(ValueError::Malformed);
    }
    let value = text[..digits].iter().fold(0, |value, digit| value * 10 + i64::from(digit - b'0'));
    Ok((value, &text[digits..]))
}

fn after(text: &[u8], byte: u8) -> Result<&[u8], ValueError> {
    match text.split_first() {
        Some((first, rest)) if *first == byte => Ok(rest),
        _ => Err(ValueError::Malformed),
    }
}

/// Days from 1970-01-01 of a date of the proleptic Gregorian calendar (year 0 is 1 BC).
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March, so that the day that is not always there is the last.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// `2024-02-29`, with the ` BC` that stands at the very end; the days from 1970, and what follows the date.
fn civil(text: &[u8]) -> Result<(i64, &[u8]), ValueError> {
    let (text, before_christ) = match text.strip_suffix(b" BC") {
        Some(text) => (text, true),
        None => (text, false),
    };
    let (year, rest) = number(text, 7)?;
    let (month, rest) = number(after(rest, b'-')?, 2)?;
    let (day, rest) = number(after(rest, b'-')?, 2)?;
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return Err(ValueError::Malformed);
    }
    Ok((days_from_civil(if before_christ { 1 - year } else { year }, month, day), rest))
}

fn days(text: &[u8]) -> Result<i32, ValueError> {
    match text {
        b"infinity" => return Ok(i32::MAX),
        b"-infinity" => return Ok(i32::MIN),
        _ => {}
    }
    match civil(text)? {
        (days, []) => i32::try_from(days).map_err(|_| ValueError::Malformed),
        _ => Err(ValueError::Malformed),
    }
}

/// Microseconds of `12:34:56.789`, and what follows.
fn clock(text: &[u8]) -> Result<(i64, &[u8]), ValueError> {
    let (hours, rest) = number(text, 2)?;
    let (minutes, rest) = number(after(rest, b':')?, 2)?;
    let (seconds, mut rest) = number(after(rest, b':')?, 2)?;
    let mut micros = 0;
    if let Ok(fraction) = after(rest, b'.') {
        let (value, after_fraction) = number(fraction, 6)?;
        let digits = fraction.len() - after_fraction.len();
        micros = value * 10i64.pow(6 - digits as u32);
        rest = after_fraction;
    }
    Ok((((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + micros, rest))
}

fn time(text: &[u8]) -> Result<i64, ValueError> {
    match clock(text)? {
        (micros, []) => Ok(micros),
        _ => Err(ValueError::Malformed),
    }
}

fn timestamp(text: &[u8], utc: bool) -> Result<i64, ValueError> {
    match text {
        b"infinity" => return Ok(i64::MAX),
        b"-infinity" => return Ok(i64::MIN),
        _ => {}
    }
    let (days, rest) = civil(text)?;
    let (micros, rest) = clock(after(rest, b' ')?)?;
    // The session's time zone is UTC.
    let rest = if utc { rest.strip_prefix(b"+00").ok_or(ValueError::Malformed)? } else { rest };
    match rest {
        b"" | b" BC" => Ok(days.saturating_mul(86_400_000_000).saturating_add(micros)),
        _ => Err(ValueError::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(scalar: Scalar, text: &str) -> Result<Vec<u8>, ValueError> {
        let mut out = Vec::new();
        put_scalar(&mut out, scalar, text.as_bytes()).map(|()| out)
    }

    fn micros(text: &str) -> i64 {
        i64::from_le_bytes(put(Scalar::DateTime64 { utc: false }, text).unwrap().try_into().unwrap())
    }

    fn date(text: &str) -> i32 {
        i32::from_le_bytes(put(Scalar::Date32, text).unwrap().try_into().unwrap())
    }

    #[test]
    fn dates_and_times_count_from_1970() {
        assert_eq!([date("1970-01-01"), date("2000-01-01"), date("1969-12-31")], [0, 10_957, -1]);
        assert_eq!([date("0001-01-01"), date("9999-12-31")], [-719_162, 2_932_896]);
        assert_eq!(date("2024-02-29") + 1, date("2024-03-01"));
        assert_eq!(micros("1970-01-02 00:00:01.5"), 86_401_500_000);
        assert_eq!(micros("1969-12-31 23:59:59.999999"), -1);
        assert_eq!(micros("0001-01-01 00:00:00 BC"), -62_167_219_200_000_000);
        let utc = Scalar::DateTime64 { utc: true };
        assert_eq!(put(utc, "1970-01-01 00:00:00.000001+00"), Ok(1i64.to_le_bytes().to_vec()));
        assert_eq!(put(Scalar::Time64, "24:00:00"), Ok(86_400_000_000i64.to_le_bytes().to_vec()));
    }

    #[test]
    fn what_has_no_place_is_told_from_what_is_broken() {
        for (scalar, text) in [
            (Scalar::Date32, "infinity"),
            (Scalar::Date32, "4713-01-01 BC"),
            (Scalar::Date32, "5874897-12-31"),
            (Scalar::DateTime64 { utc: false }, "-infinity"),
            (Scalar::DateTime64 { utc: true }, "294276-12-31 23:59:59.999999+00"),
        ] {
            assert!(matches!(put(scalar, text), Err(ValueError::OutOfRange(..))), "{text}");
        }
        for (scalar, text) in [
            (Scalar::Bool, "true"),
            (Scalar::Int16, "32768"),
            (Scalar::UInt32, "-1"),
            (Scalar::Bytes, "\\x0"),
            (Scalar::Bytes, "\\x0g"),
            (Scalar::Bytes, "00"),
            (Scalar::Uuid, "00112233-4455-6677-8899-aabbccddeef"),
            (Scalar::Date32, "01/02/2024"),
            (Scalar::Date32, "2024-13-01"),
            (Scalar::Time64, "12:00"),
            (Scalar::DateTime64 { utc: true }, "2024-01-01 00:00:00+02"),
        ] {
            assert_eq!(put(scalar, text), Err(ValueError::Malformed), "{text}");
        }
    }

    #[test]
    fn bytes_and_floats_are_exact() {
        assert_eq!(put(Scalar::Bytes, "\\x00ff5c"), Ok(vec![3, 0, 0xFF, 0x5C]));
        assert_eq!(put(Scalar::Float64, "-0"), Ok((-0f64).to_le_bytes().to_vec()));
        assert_eq!(put(Scalar::Float64, "5e-324"), Ok(5e-324f64.to_le_bytes().to_vec()));
        assert_eq!(put(Scalar::Float32, "-Infinity"), Ok(f32::NEG_INFINITY.to_le_bytes().to_vec()));
        assert_eq!(put(Scalar::Float64, "NaN"), Ok(f64::NAN.to_le_bytes().to_vec()));
        let uuid = put(Scalar::Uuid, "00112233-4455-6677-8899-aabbccddeeff").unwrap();
        assert_eq!(uuid[..8], 0x0011_2233_4455_6677u64.to_le_bytes());
    }
}
