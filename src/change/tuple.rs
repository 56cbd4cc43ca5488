//! One row's values, still in the bytes that the server sent.

/// One value, borrowed from the receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    Null,
    /// An external TOAST value that the update did not touch: not sent.
    Unchanged,
    /// PostgreSQL's text form.
    Text(&'a [u8]),
    /// PostgreSQL's binary form (`typsend`).
    Binary(&'a [u8]),
}

/// A pgoutput TupleData whose lengths were checked when it was decoded, so that walking it cannot fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple<'a> {
    columns: u16,
    has_unchanged: bool,
    body: &'a [u8],
}

impl<'a> Tuple<'a> {
    /// `body` must hold exactly `columns` well-formed values, as [`crate::source::pgoutput`] checks; `has_unchanged`:
    /// at least one of them was not sent.
    pub(crate) fn from_checked(columns: u16, has_unchanged: bool, body: &'a [u8]) -> Self {
        Tuple { columns, has_unchanged, body }
    }

    /// A value was not sent, because the update left it alone.
    pub fn has_unchanged(&self) -> bool {
        self.has_unchanged
    }

    /// A copy that outlives the receive buffer.
    pub fn store(&self) -> StoredTuple {
        StoredTuple { columns: self.columns, has_unchanged: self.has_unchanged, body: self.body.into() }
    }

    pub fn len(&self) -> usize {
        usize::from(self.columns)
    }

    pub fn is_empty(&self) -> bool {
        self.columns == 0
    }

    pub fn values(&self) -> Values<'a> {
        Values { left: self.columns, body: self.body }
    }
}

/// A [`Tuple`] with bytes of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTuple {
    columns: u16,
    has_unchanged: bool,
    body: Box<[u8]>,
}

impl StoredTuple {
    pub fn tuple(&self) -> Tuple<'_> {
        Tuple::from_checked(self.columns, self.has_unchanged, &self.body)
    }

    pub fn bytes(&self) -> usize {
        self.body.len()
    }
}

/// The values of a [`Tuple`] in column order.
#[derive(Clone, Debug)]
pub struct Values<'a> {
    left: u16,
    body: &'a [u8],
}

impl<'a> Iterator for Values<'a> {
    type Item = Value<'a>;

    #[inline]
    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        let (&kind, rest) = self.body.split_first()?;
        self.body = rest;
        match kind {
            b'n' => return Some(Value::Null),
            b'u' => return Some(Value::Unchanged),
            _ => {}
        }
        let (length, rest) = self.body.split_first_chunk::<4>()?;
        let (bytes, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        self.body = rest;
        Some(if kind == b'b' { Value::Binary(bytes) } else { Value::Text(bytes) })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(self.left), Some(usize::from(self.left)))
    }
}

impl ExactSizeIterator for Values<'_> {}
