//! Numbers and times as people read them.

use crate::units::ByteSize;

/// A value in its unit: bytes as KiB, MiB, …; others by [`number`].
pub fn quantity(value: f64, unit: &str) -> String {
    match unit {
        "bytes" => bytes(value),
        "bytes/s" => format!("{}/s", bytes(value)),
        _ => number(value),
    }
}

/// The unit to name beside [`quantity`]; empty where the value shows it.
pub fn unit(unit: &str) -> &str {
    if unit.starts_with("bytes") { "" } else { unit }
}

fn bytes(value: f64) -> String {
    // A saturating cast: what is negative or no number shows as 0 B.
    ByteSize(value.round() as u64).to_string()
}

/// Whole with separators from 1,000 on and where it is a whole number; three significant digits below.
pub fn number(value: f64) -> String {
    let size = value.abs();
    match () {
        () if !value.is_finite() => "–".to_owned(),
        () if size >= 999.5 || value.fract() == 0.0 => thousands(value),
        () if size >= 99.95 => format!("{value:.0}"),
        () if size >= 9.995 => format!("{value:.1}"),
        () if size >= 0.9995 => format!("{value:.2}"),
        () => format!("{value:.3}"),
    }
}

fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if value < 0.0 && digits != "0" { format!("-{out}") } else { out }
}

/// `12.3 s`, `2 min 5 s`.
pub fn seconds(value: f64) -> String {
    match () {
        () if value < 60.0 => format!("{value:.1} s"),
        () => format!("{} min {:.0} s", (value / 60.0).floor(), (value % 60.0).floor()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "0"),
            (0.98765, "0.988"),
            (1.234, "1.23"),
            (12.34, "12.3"),
            (123.4, "123"),
            (999.6, "1,000"),
            (1000.4, "1,000"),
            (1_234_567.8, "1,234,568"),
            (-1234.0, "-1,234"),
            (-0.2, "-0.200"),
            (f64::NAN, "–"),
        ] {
            assert_eq!(number(value), text, "{value}");
        }
    }

    #[test]
    fn quantities_and_times() {
        assert_eq!(quantity(14_680_064.0, "bytes/s"), "14.0 MiB/s");
        assert_eq!(quantity(-5.0, "bytes"), "0 B");
        assert_eq!(quantity(40_000.0, "rows/s"), "40,000");
        assert_eq!((unit("bytes"), unit("rows/s")), ("", "rows/s"));
        assert_eq!((seconds(59.94), seconds(125.9)), ("59.9 s".to_owned(), "2 min 5 s".to_owned()));
    }
}
