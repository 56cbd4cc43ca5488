//! PostgreSQL's array literals taken apart. Pure.
//!
//! Source: PostgreSQL manual, "Array Input and Output Syntax". What ClickHouse's arrays cannot say is an error: several
//! dimensions, and bounds that do not begin at 1 (which the literal names in front: `[5:7]={1,2,3}`).

use std::borrow::Cow;

use super::encode::ValueError;

/// The elements of a literal, `None` for NULL; ends after the first error.
pub fn items(literal: &[u8], delimiter: u8) -> Items<'_> {
    let (rest, state) = match literal {
        [b'{', b'}'] => (&literal[2..], State::Done),
        [b'{', rest @ ..] => (rest, State::Element),
        [b'[', ..] => (literal, State::Failed(ValueError::Shape("its lower bound is not 1"))),
        _ => (literal, State::Failed(ValueError::Malformed)),
    };
    Items { rest, state, delimiter }
}

/// See [`items`].
#[derive(Debug)]
pub struct Items<'a> {
    rest: &'a [u8],
    state: State,
    delimiter: u8,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Element,
    Failed(ValueError),
    Done,
}

type Item<'a> = Option<Cow<'a, [u8]>>;

impl<'a> Iterator for Items<'a> {
    type Item = Result<Item<'a>, ValueError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.state {
            State::Done => return None,
            State::Failed(error) => {
                self.state = State::Done;
                return Some(Err(error));
            }
            State::Element => {}
        }
        let item = self.element().and_then(|item| self.end_element().map(|()| item));
        if item.is_err() {
            self.state = State::Done;
        }
        Some(item)
    }
}

impl<'a> Items<'a> {
    fn element(&mut self) -> Result<Item<'a>, ValueError> {
        match self.rest.first() {
            Some(b'"') => self.quoted().map(Some),
            Some(b'{') => Err(ValueError::Shape("it has more than one dimension")),
            _ => self.plain(),
        }
    }

    fn plain(&mut self) -> Result<Item<'a>, ValueError> {
        let ends = |byte: &u8| *byte == self.delimiter || *byte == b'}';
        let end = self.rest.iter().position(ends).ok_or(ValueError::Malformed)?;
        let (item, rest) = self.rest.split_at(end);
        self.rest = rest;
        match item {
            b"NULL" => Ok(None),
            b"" => Err(ValueError::Malformed),
            _ => Ok(Some(Cow::Borrowed(item))),
        }
    }

    fn quoted(&mut self) -> Result<Cow<'a, [u8]>, ValueError> {
        let body = &self.rest[1..];
        let special = |byte: &u8| matches!(byte, b'"' | b'\\');
        let first = body.iter().position(special).ok_or(ValueError::Malformed)?;
        if body[first] == b'"' {
            self.rest = &body[first + 1..];
            return Ok(Cow::Borrowed(&body[..first]));
        }
        let mut item = Vec::with_capacity(body.len().min(64));
        let mut at = 0;
        loop {
            match body.get(at) {
                Some(b'"') => break,
                Some(b'\\') => {
                    item.push(*body.get(at + 1).ok_or(ValueError::Malformed)?);
                    at += 2;
                }
                Some(byte) => {
                    item.push(*byte);
                    at += 1;
                }
                None => return Err(ValueError::Malformed),
            }
        }
        self.rest = &body[at + 1..];
        Ok(Cow::Owned(item))
    }

    fn end_element(&mut self) -> Result<(), ValueError> {
        match self.rest {
            [b'}'] => self.state = State::Done,
            [byte, rest @ ..] if *byte == self.delimiter => self.rest = rest,
            _ => return Err(ValueError::Malformed),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(literal: &str) -> Result<Vec<Option<String>>, ValueError> {
        let text = |item: Item<'_>| item.map(|bytes| String::from_utf8(bytes.into_owned()).unwrap());
        items(literal.as_bytes(), b',').map(|item| item.map(text)).collect()
    }

    #[test]
    fn literals_are_read_as_postgres_writes_them() {
        for (literal, expected) in [
            ("{}", vec![]),
            ("{1}", vec![Some("1")]),
            ("{1,NULL,-3}", vec![Some("1"), None, Some("-3")]),
            (r#"{"NULL","",a b}"#, vec![Some("NULL"), Some(""), Some("a b")]),
            (r#"{"a\"b","c\\d","{x,y}"}"#, vec![Some("a\"b"), Some("c\\d"), Some("{x,y}")]),
            (r#"{"é","\\"}"#, vec![Some("é"), Some("\\")]),
        ] {
            let expected: Vec<Option<String>> =
                expected.into_iter().map(|item| item.map(str::to_owned)).collect();
            assert_eq!(parsed(literal), Ok(expected), "{literal}");
        }
    }

    #[test]
    fn what_is_no_plain_list_is_an_error() {
        for literal in ["", "{", "{1", "{1,}", "{,1}", "{1}x", "{\"a}", "{\"a\\", "{\"a\"b}", "1,2"] {
            assert_eq!(parsed(literal), Err(ValueError::Malformed), "{literal}");
        }
        for literal in ["{{1,2},{3,4}}", "[0:1]={1,2}"] {
            assert!(matches!(parsed(literal), Err(ValueError::Shape(_))), "{literal}");
        }
    }

    #[test]
    fn boxes_have_a_delimiter_of_their_own() {
        let boxes = b"{(1,1),(0,0);NULL;(2,2),(1,1)}";
        let items: Vec<_> = items(boxes, b';').map(|item| item.unwrap().map(Cow::into_owned)).collect();
        assert_eq!(items, [Some(b"(1,1),(0,0)".to_vec()), None, Some(b"(2,2),(1,1)".to_vec())]);
    }
}
