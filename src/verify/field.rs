//! Fields of a tab-separated line as PostgreSQL's COPY and ClickHouse's TabSeparated write them.
//!
//! Both write NULL as `\N` and escape with backslashes, but not the same characters: COPY escapes the vertical tab,
//! TabSeparated the single quote and the zero byte. So lines that differ may still hold equal values, and are compared
//! by what they say. Sources: PostgreSQL manual, COPY, text format; ClickHouse manual, formats, TabSeparated.

use std::borrow::Cow;

/// A value by its text; `None` is NULL.
pub type Field<'a> = Option<Cow<'a, [u8]>>;

/// The field as it was before it was escaped.
pub fn unescape(raw: &[u8]) -> Field<'_> {
    if raw == b"\\N" {
        return None;
    }
    let Some(first) = memchr::memchr(b'\\', raw) else { return Some(Cow::Borrowed(raw)) };
    let mut text = raw[..first].to_vec();
    let mut bytes = raw[first..].iter();
    while let Some(&byte) = bytes.next() {
        let escaped = (byte == b'\\').then(|| bytes.next()).flatten();
        text.push(escaped.map_or(byte, |&letter| unescaped(letter)));
    }
    Some(Cow::Owned(text))
}

/// What a backslash and `letter` stand for.
fn unescaped(letter: u8) -> u8 {
    match letter {
        b'b' => 0x08,
        b'f' => 0x0C,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'v' => 0x0B,
        b'0' => 0,
        other => other,
    }
}

/// Whether two escaped fields say the same.
pub fn same(one: &[u8], other: &[u8]) -> bool {
    one == other || unescape(one) == unescape(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_not_the_empty_text_and_not_its_own_name() {
        assert_eq!(unescape(b"\\N"), None);
        assert_eq!(unescape(b"").as_deref(), Some(&b""[..]));
        assert_eq!(unescape(b"\\\\N").as_deref(), Some(&b"\\N"[..]));
        assert!(!same(b"\\N", b"") && !same(b"\\N", b"\\\\N") && !same(b"N", b"\\N"));
    }

    #[test]
    fn both_ways_to_escape_are_read() {
        for (source, target) in [
            (&b"it's"[..], &b"it\\'s"[..]),
            (b"a\\vb", b"a\x0Bb"),
            (b"\\b\\f\\n\\r\\t\\\\", b"\\b\\f\\n\\r\\t\\\\"),
            (b"\\\\x00", b"\\\\x00"),
        ] {
            assert!(same(source, target), "{source:?} {target:?}");
        }
        assert!(!same(b"a\\tb", b"a\\nb"));
    }
}
