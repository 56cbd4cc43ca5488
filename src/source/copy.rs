//! `COPY … (FORMAT binary)`: rows as the server sends them, one in a CopyData message, borrowed from the receive buffer.
//!
//! Source: PostgreSQL manual, COPY, "Binary Format".

use crate::change::Value;

const SIGNATURE: &[u8; 11] = b"PGCOPY\n\xff\r\n\0";

/// Why a COPY stream cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    #[error("COPY does not begin with the signature of the binary format")]
    Signature,
    #[error("COPY ends inside a row")]
    Truncated,
    #[error("COPY sent a row of {0} columns where {1} were asked for")]
    Columns(u16, u16),
    #[error("COPY sent a row with {0} bytes too many")]
    Trailing(usize),
    #[error("COPY sent a value of length {0}")]
    Length(i32),
}

/// Reads one COPY's messages in order.
#[derive(Debug)]
pub struct CopyDecoder {
    columns: u16,
    header_seen: bool,
}

/// One row, its lengths checked: walking it cannot fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRow<'a> {
    body: &'a [u8],
}

impl CopyDecoder {
    pub fn new(columns: u16) -> Self {
        CopyDecoder { columns, header_seen: false }
    }

    /// The row in one CopyData message; `None` for a message that holds no row (the header alone, the trailer).
    pub fn decode<'a>(&mut self, mut message: &'a [u8]) -> Result<Option<CopyRow<'a>>, CopyError> {
        if !self.header_seen {
            message = after_header(message)?;
            self.header_seen = true;
        }
        if message.is_empty() || message == [0xFF, 0xFF] {
            return Ok(None);
        }
        let (count, body) = message.split_first_chunk::<2>().ok_or(CopyError::Truncated)?;
        match u16::from_be_bytes(*count) {
            count if count == self.columns => check(body, count).map(Some),
            count => Err(CopyError::Columns(count, self.columns)),
        }
    }
}

fn after_header(message: &[u8]) -> Result<&[u8], CopyError> {
    let rest = message.strip_prefix(SIGNATURE).ok_or(CopyError::Signature)?;
    let rest = rest.get(4..).ok_or(CopyError::Truncated)?;
    let (length, rest) = rest.split_first_chunk::<4>().ok_or(CopyError::Truncated)?;
    rest.get(u32::from_be_bytes(*length) as usize..).ok_or(CopyError::Truncated)
}

#[inline]
fn check(body: &[u8], count: u16) -> Result<CopyRow<'_>, CopyError> {
    let mut rest = body;
    for _ in 0..count {
        let (length, after) = rest.split_first_chunk::<4>().ok_or(CopyError::Truncated)?;
        rest = match i32::from_be_bytes(*length) {
            -1 => after,
            length @ 0.. => after.get(length as usize..).ok_or(CopyError::Truncated)?,
            length => return Err(CopyError::Length(length)),
        };
    }
    if rest.is_empty() { Ok(CopyRow { body }) } else { Err(CopyError::Trailing(rest.len())) }
}

impl<'a> CopyRow<'a> {
    pub fn values(&self) -> CopyValues<'a> {
        CopyValues { body: self.body }
    }
}

/// The values of a [`CopyRow`] in column order.
#[derive(Clone, Debug)]
pub struct CopyValues<'a> {
    body: &'a [u8],
}

impl<'a> Iterator for CopyValues<'a> {
    type Item = Value<'a>;

    #[inline]
    fn next(&mut self) -> Option<Value<'a>> {
        let (length, rest) = self.body.split_first_chunk::<4>()?;
        let length = i32::from_be_bytes(*length);
        if length < 0 {
            self.body = rest;
            return Some(Value::Null);
        }
        let (bytes, rest) = rest.split_at_checked(length as usize)?;
        self.body = rest;
        Some(Value::Binary(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Vec<u8> {
        [SIGNATURE.as_slice(), &[0; 8]].concat()
    }

    #[test]
    fn a_row_behind_the_header_and_one_alone() {
        let mut decoder = CopyDecoder::new(2);
        let row = b"\0\x02\0\0\0\x01a\xff\xff\xff\xff";
        let first = [header().as_slice(), row].concat();
        for message in [first.as_slice(), row] {
            let row = decoder.decode(message).unwrap().expect("a row");
            assert_eq!(row.values().collect::<Vec<_>>(), [Value::Binary(b"a"), Value::Null]);
        }
        assert_eq!(decoder.decode(&[0xFF, 0xFF]), Ok(None));
    }

    #[test]
    fn bad_input_is_named() {
        assert_eq!(CopyDecoder::new(1).decode(b"id,name"), Err(CopyError::Signature));
        let mut decoder = CopyDecoder::new(1);
        assert_eq!(decoder.decode(&header()), Ok(None));
        assert_eq!(decoder.decode(b"\0\x02"), Err(CopyError::Columns(2, 1)));
        assert_eq!(decoder.decode(b"\0\x01\0\0\0\x09abc"), Err(CopyError::Truncated));
        assert_eq!(decoder.decode(b"\0\x01\xff\xff\xff\xfe"), Err(CopyError::Length(-2)));
        assert_eq!(decoder.decode(b"\0\x01\0\0\0\0x"), Err(CopyError::Trailing(1)));
    }
}
