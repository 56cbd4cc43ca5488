//! Quantities with their units in the type: WAL positions, sizes, rates, PostgreSQL's clock.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A position in the write-ahead log: bytes since its beginning. Shown as PostgreSQL does (`2/60E1D78`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    pub const ZERO: Lsn = Lsn(0);

    /// Bytes from `earlier` to here, 0 when `earlier` is ahead.
    pub fn bytes_since(self, earlier: Lsn) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

#[derive(Debug, thiserror::Error, PartialEq)]
#[error("`{0}` is no LSN; PostgreSQL writes one as two hexadecimal numbers, like 2/60E1D78")]
pub struct LsnError(String);

impl FromStr for Lsn {
    type Err = LsnError;

    fn from_str(text: &str) -> Result<Self, LsnError> {
        let parse = || {
            let (high, low) = text.split_once('/')?;
            let part = |digits: &str| u32::from_str_radix(digits, 16).ok();
            Some(Lsn(u64::from(part(high)?) << 32 | u64::from(part(low)?)))
        };
        parse().ok_or_else(|| LsnError(text.to_owned()))
    }
}

impl Serialize for Lsn {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Lsn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Microseconds since 2000-01-01 00:00 UTC, PostgreSQL's epoch, as in its wire protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PgMicros(pub i64);

/// 2000-01-01 in microseconds since 1970-01-01.
pub const PG_EPOCH_UNIX_MICROS: i64 = 946_684_800_000_000;

impl PgMicros {
    /// Microseconds since 1970-01-01 00:00 UTC; saturates at the ends.
    pub fn unix_micros(self) -> i64 {
        self.0.saturating_add(PG_EPOCH_UNIX_MICROS)
    }

    pub fn from_unix_micros(micros: i64) -> Self {
        PgMicros(micros.saturating_sub(PG_EPOCH_UNIX_MICROS))
    }

    /// This machine's wall clock, now.
    pub fn now() -> Self {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self::from_unix_micros(since.as_micros() as i64)
    }
}

/// A number of bytes: `8MiB`, `200 kB`, `1GiB` in files, exact bytes in code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl ByteSize {
    pub const fn mib(count: u64) -> Self {
        ByteSize(count << 20)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", bytesize::ByteSize(self.0).display().iec())
    }
}

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let size: bytesize::ByteSize =
            text.parse().map_err(|_| format!("`{text}` is no size; write it like \"8MiB\""))?;
        Ok(ByteSize(size.0))
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A length of time as people write it: `20s`, `500ms`, `1h 30m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub std::time::Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", humantime::format_duration(self.0))
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let span = humantime::parse_duration(text);
        span.map(Span)
            .map_err(|_| format!("`{text}` is no length of time; write it like \"20s\" or \"500ms\""))
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lsn_reads_and_writes_as_postgres_does() {
        for (text, value) in [("0/0", 0), ("2/60E1D78", 0x2_060E_1D78), ("FFFFFFFF/FFFFFFFF", u64::MAX)] {
            assert_eq!(text.parse(), Ok(Lsn(value)));
            assert_eq!(Lsn(value).to_string(), text);
        }
        for bad in ["", "2", "2/", "/2", "2/G", "2/100000000", "+1/2x"] {
            assert!(bad.parse::<Lsn>().is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_and_spans() {
        assert_eq!("8MiB".parse(), Ok(ByteSize(8 << 20)));
        assert_eq!("500ms".parse(), Ok(Span(std::time::Duration::from_millis(500))));
        assert!("8 apples".parse::<ByteSize>().is_err());
        assert!("soon".parse::<Span>().is_err());
    }
}
