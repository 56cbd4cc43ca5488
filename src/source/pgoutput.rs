//! pgoutput, protocol 1 to 4: one message in, one [`Event`] out, borrowed from the receive buffer.
//!
//! Pure: no socket, no clock. Every length is checked here, once, so that walking a tuple later cannot fail; nothing is
//! allocated but a relation's columns and a truncate's list, and those only in proportion to bytes that are there.
//!
//! Hazard: inside a stream block (between Stream Start and Stream Stop) most messages carry one more field, the xid,
//! and nothing in the message says so. The decoder therefore has one bit of state, and must see every message in order.
//!
//! Source: PostgreSQL manual, "Logical Replication Message Formats"; src/backend/replication/logical/proto.c.

use crate::{
    change::{Column, Event, Identity, OldRow, Prepared, Relation, RelationId, Tuple},
    units::{Lsn, PgMicros},
};

/// Why a message cannot be read. Not retryable: the same bytes would come again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("pgoutput message `{tag}` ends {field}")]
    Truncated { tag: char, field: &'static str },
    #[error("pgoutput message `{tag}` has {left} bytes too many")]
    Trailing { tag: char, left: usize },
    #[error("pgoutput message `{tag}` has {field} {value:#04x}, which the protocol does not know")]
    Unknown { tag: char, field: &'static str, value: u8 },
    #[error("pgoutput message `{tag}` holds a name that is not UTF-8")]
    NotUtf8 { tag: char },
    #[error("pgoutput message of type {0:#04x} is not known")]
    UnknownMessage(u8),
    #[error("pgoutput message is empty")]
    Empty,
}

/// Decodes one session's messages in order.
#[derive(Debug, Default)]
pub struct Decoder {
    in_stream: bool,
}

impl Decoder {
    /// For messages that were kept apart from the Stream Start before them.
    pub fn inside_stream(in_stream: bool) -> Self {
        Decoder { in_stream }
    }

    /// The (sub)transaction that a message inside of a stream block belongs to, read without decoding the message.
    pub fn subxid(&self, message: &[u8]) -> Option<u32> {
        let (tag, rest) = message.split_first()?;
        let has_xid = self.in_stream && matches!(tag, b'I' | b'U' | b'D' | b'R' | b'Y' | b'T' | b'M');
        has_xid.then(|| rest.first_chunk::<4>().map(|xid| u32::from_be_bytes(*xid)))?
    }

    /// One message as it stands in a CopyData's XLogData.
    pub fn decode<'a>(&mut self, message: &'a [u8]) -> Result<Event<'a>, DecodeError> {
        let (&tag, body) = message.split_first().ok_or(DecodeError::Empty)?;
        let mut reader = Reader { tag: char::from(tag), body };
        let event = self.event(tag, &mut reader)?;
        match reader.body.len() {
            0 => Ok(event),
            left => Err(DecodeError::Trailing { tag: reader.tag, left }),
        }
    }

    #[inline]
    fn event<'a>(&mut self, tag: u8, r: &mut Reader<'a>) -> Result<Event<'a>, DecodeError> {
        Ok(match tag {
            b'I' => Event::Insert { xid: self.xid(r)?, relation: r.relation_id()?, new: r.new_tuple()? },
            b'U' => update(self.xid(r)?, r)?,
            b'D' => delete(self.xid(r)?, r)?,
            b'B' => Event::Begin { final_lsn: r.lsn()?, commit_time: r.time()?, xid: r.u32()? },
            b'C' => {
                r.flags()?;
                Event::Commit { commit_lsn: r.lsn()?, end_lsn: r.lsn()?, commit_time: r.time()? }
            }
            b'R' => Event::Relation { xid: self.xid(r)?, relation: relation(r)? },
            b'Y' => Event::Type { xid: self.xid(r)?, oid: r.u32()?, schema: r.string()?, name: r.string()? },
            b'O' => Event::Origin { commit_lsn: r.lsn()?, name: r.string()? },
            b'T' => truncate(self.xid(r)?, r)?,
            b'M' => logical_message(self.xid(r)?, r)?,
            b'S' => {
                self.in_stream = true;
                Event::StreamStart { xid: r.u32()?, first: r.u8()? != 0 }
            }
            b'E' => {
                self.in_stream = false;
                Event::StreamStop
            }
            b'c' => {
                let xid = r.u32()?;
                r.flags()?;
                Event::StreamCommit { xid, commit_lsn: r.lsn()?, end_lsn: r.lsn()?, commit_time: r.time()? }
            }
            b'A' => stream_abort(r)?,
            b'b' => Event::BeginPrepare(r.prepared()?),
            b'P' => Event::Prepare(r.flagged_prepared()?),
            b'K' => Event::CommitPrepared(r.flagged_prepared()?),
            b'p' => Event::StreamPrepare(r.flagged_prepared()?),
            b'r' => rollback_prepared(r)?,
            other => return Err(DecodeError::UnknownMessage(other)),
        })
    }

    #[inline]
    fn xid(&self, r: &mut Reader<'_>) -> Result<Option<u32>, DecodeError> {
        if self.in_stream { r.u32().map(Some) } else { Ok(None) }
    }
}

fn update<'a>(xid: Option<u32>, r: &mut Reader<'a>) -> Result<Event<'a>, DecodeError> {
    let relation = r.relation_id()?;
    let old = match r.body.first() {
        Some(b'K' | b'O') => Some(r.old_row()?),
        _ => None,
    };
    Ok(Event::Update { xid, relation, old, new: r.new_tuple()? })
}

fn delete<'a>(xid: Option<u32>, r: &mut Reader<'a>) -> Result<Event<'a>, DecodeError> {
    Ok(Event::Delete { xid, relation: r.relation_id()?, old: r.old_row()? })
}

fn relation(r: &mut Reader<'_>) -> Result<Relation, DecodeError> {
    let id = r.relation_id()?;
    let schema = match r.utf8()? {
        "" => "pg_catalog",
        schema => schema,
    };
    let name = r.utf8()?;
    let byte = r.u8()?;
    let identity = Identity::from_byte(byte).ok_or(r.unknown("a replica identity", byte))?;
    let count = r.u16()?;
    let columns = (0..count).map(|_| column(r)).collect::<Result<_, _>>()?;
    Ok(Relation { id, schema: schema.to_owned(), name: name.to_owned(), identity, columns })
}

fn column(r: &mut Reader<'_>) -> Result<Column, DecodeError> {
    let is_key = r.u8()? & 1 != 0;
    Ok(Column { name: r.utf8()?.to_owned(), type_oid: r.u32()?, typmod: r.u32()? as i32, is_key })
}

fn truncate<'a>(xid: Option<u32>, r: &mut Reader<'a>) -> Result<Event<'a>, DecodeError> {
    let count = r.u32()?;
    let options = r.u8()?;
    let relations = (0..count).map(|_| r.relation_id()).collect::<Result<_, _>>()?;
    Ok(Event::Truncate { xid, cascade: options & 1 != 0, restart_identity: options & 2 != 0, relations })
}

fn logical_message<'a>(xid: Option<u32>, r: &mut Reader<'a>) -> Result<Event<'a>, DecodeError> {
    let transactional = r.u8()? & 1 != 0;
    let (lsn, prefix) = (r.lsn()?, r.string()?);
    let length = r.u32()? as usize;
    Ok(Event::Message { xid, transactional, lsn, prefix, content: r.bytes(length)? })
}

fn stream_abort<'a>(r: &mut Reader<'a>) -> Result<Event<'a>, DecodeError> {
    let (xid, subxid) = (r.u32()?, r.u32()?);
    let abort = if r.body.is_empty() { None } else { Some((r.lsn()?, r.time()?)) };
    Ok(Event::StreamAbort { xid, subxid, abort })
}

fn rollback_prepared<'a>(r: &mut Reader<'a>) -> Result<Event<'a>, DecodeError> {
    r.flags()?;
    Ok(Event::RollbackPrepared {
        prepare_end_lsn: r.lsn()?,
        rollback_end_lsn: r.lsn()?,
        prepare_time: r.time()?,
        rollback_time: r.time()?,
        xid: r.u32()?,
        gid: r.string()?,
    })
}

/// What is left of one message.
struct Reader<'a> {
    tag: char,
    body: &'a [u8],
}

impl<'a> Reader<'a> {
    fn truncated(&self, field: &'static str) -> DecodeError {
        DecodeError::Truncated { tag: self.tag, field }
    }

    fn unknown(&self, field: &'static str, value: u8) -> DecodeError {
        DecodeError::Unknown { tag: self.tag, field, value }
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.body.split_first_chunk::<N>().ok_or(self.truncated("inside a number"))?;
        self.body = rest;
        Ok(*head)
    }

    #[inline]
    fn bytes(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self.body.split_at_checked(length).ok_or(self.truncated("inside a value"))?;
        self.body = rest;
        Ok(head)
    }

    fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_be_bytes)
    }

    #[inline]
    fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_be_bytes)
    }

    fn lsn(&mut self) -> Result<Lsn, DecodeError> {
        self.u64().map(Lsn)
    }

    fn time(&mut self) -> Result<PgMicros, DecodeError> {
        self.u64().map(|micros| PgMicros(micros as i64))
    }

    #[inline]
    fn relation_id(&mut self) -> Result<RelationId, DecodeError> {
        self.u32().map(RelationId)
    }

    /// "Currently unused" flags: a value that we do not know may change what the message means.
    fn flags(&mut self) -> Result<(), DecodeError> {
        match self.u8()? {
            0 => Ok(()),
            value => Err(self.unknown("flags", value)),
        }
    }

    /// Up to the next NUL, which is dropped.
    fn string(&mut self) -> Result<&'a [u8], DecodeError> {
        let end = self.body.iter().position(|&byte| byte == 0).ok_or(self.truncated("inside a string"))?;
        let text = self.bytes(end)?;
        self.bytes(1)?;
        Ok(text)
    }

    fn utf8(&mut self) -> Result<&'a str, DecodeError> {
        let tag = self.tag;
        std::str::from_utf8(self.string()?).map_err(|_| DecodeError::NotUtf8 { tag })
    }

    #[inline]
    fn new_tuple(&mut self) -> Result<Tuple<'a>, DecodeError> {
        match self.u8()? {
            b'N' => self.tuple(),
            other => Err(self.unknown("a tuple kind", other)),
        }
    }

    fn old_row(&mut self) -> Result<OldRow<'a>, DecodeError> {
        match self.u8()? {
            b'K' => self.tuple().map(OldRow::Key),
            b'O' => self.tuple().map(OldRow::Full),
            other => Err(self.unknown("a tuple kind", other)),
        }
    }

    #[inline]
    fn tuple(&mut self) -> Result<Tuple<'a>, DecodeError> {
        let columns = self.u16()?;
        let start = self.body;
        let mut has_unchanged = false;
        for _ in 0..columns {
            match self.array()? {
                [b'n'] => {}
                [b'u'] => has_unchanged = true,
                [b't' | b'b'] => {
                    let length = self.u32()? as usize;
                    self.bytes(length)?;
                }
                [other] => return Err(self.unknown("a value kind", other)),
            }
        }
        Ok(Tuple::from_checked(columns, has_unchanged, &start[..start.len() - self.body.len()]))
    }

    fn prepared(&mut self) -> Result<Prepared<'a>, DecodeError> {
        let (lsn, end_lsn) = (self.lsn()?, self.lsn()?);
        Ok(Prepared { lsn, end_lsn, time: self.time()?, xid: self.u32()?, gid: self.string()? })
    }

    fn flagged_prepared(&mut self) -> Result<Prepared<'a>, DecodeError> {
        self.flags()?;
        self.prepared()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::Value;

    fn decode(message: &[u8]) -> Result<Event<'_>, DecodeError> {
        Decoder::default().decode(message)
    }

    #[test]
    fn a_key_change_with_unchanged_toast_keeps_the_three_kinds_of_nothing_apart() {
        let mut message = b"U\0\0\x40\x01K\0\x03t\0\0\0\x011nnN\0\x03t\0\0\0\x019ub\0\0\0\x02".to_vec();
        message.extend([7, 8]);
        let event = decode(&message).unwrap();
        let Event::Update { old: Some(OldRow::Key(old)), new, relation, xid: None } = event else {
            panic!("{event:?}")
        };
        assert_eq!(relation, RelationId(0x4001));
        assert_eq!(old.values().collect::<Vec<_>>(), [Value::Text(b"1"), Value::Null, Value::Null]);
        assert_eq!(
            new.values().collect::<Vec<_>>(),
            [Value::Text(b"9"), Value::Unchanged, Value::Binary(&[7, 8])]
        );
    }

    #[test]
    fn inside_a_stream_block_changes_carry_their_xid() {
        let mut decoder = Decoder::default();
        decoder.decode(b"S\0\0\x02\x01\x01").unwrap();
        let event = decoder.decode(b"D\0\0\x02\x02\0\0\0\x07K\0\x01n").unwrap();
        assert!(matches!(event, Event::Delete { xid: Some(0x202), relation: RelationId(7), .. }));
        decoder.decode(b"E").unwrap();
        let event = decoder.decode(b"D\0\0\0\x07K\0\x01n").unwrap();
        assert!(matches!(event, Event::Delete { xid: None, .. }));
    }

    #[test]
    fn an_abort_has_its_position_only_under_parallel_streaming() {
        let short = decode(b"A\0\0\0\x01\0\0\0\x02").unwrap();
        assert_eq!(short, Event::StreamAbort { xid: 1, subxid: 2, abort: None });
        let long = decode(b"A\0\0\0\x01\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04").unwrap();
        assert_eq!(long, Event::StreamAbort { xid: 1, subxid: 2, abort: Some((Lsn(3), PgMicros(4))) });
    }

    #[test]
    fn what_is_cut_short_or_too_long_is_an_error() {
        let message = b"U\0\0\x40\x01K\0\x01t\0\0\0\x011N\0\x02t\0\0\0\x019u";
        for length in 0..message.len() {
            assert!(decode(&message[..length]).is_err(), "{length}");
        }
        let longer = [message.as_slice(), b"x"].concat();
        assert_eq!(decode(&longer), Err(DecodeError::Trailing { tag: 'U', left: 1 }));
        assert_eq!(decode(b""), Err(DecodeError::Empty));
        assert_eq!(decode(b"z"), Err(DecodeError::UnknownMessage(b'z')));
    }

    #[test]
    fn a_lying_length_allocates_nothing() {
        assert!(decode(b"T\xff\xff\xff\xff\0\0\0\0\x01").is_err());
        assert!(decode(b"I\0\0\0\x01N\xff\xfft\xff\xff\xff\xff").is_err());
        assert!(decode(b"R\0\0\0\x01a\0b\0d\xff\xff\0").is_err());
    }
}
