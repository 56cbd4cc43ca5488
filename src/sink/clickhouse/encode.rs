//! Rows to a block of ClickHouse's Native format: PostgreSQL's bytes straight into column buffers. Pure.
//!
//! One [`NativeBlock`] collects rows of one table. Each value is looked at once, by the writer of its column; nothing is
//! allocated per row or per value. A value that its column cannot hold is an error that names the column: it is never
//! clamped, cut or replaced.
//!
//! Layout (ClickHouse, docs/en/interfaces/formats/Native): columns, rows, then per column name, type, data; `Nullable`
//! is a byte map before the values, `Array` is cumulative offsets before the elements.

use bytes::Bytes;

use super::{
    array, lookup,
    numeric::{Numeric, decimal_width},
    text,
    types::{ArrayForm, ColumnType, IS_NULL_SUFFIX, Scalar, column_type},
};
use crate::{
    change::{Misfit, Table, TableColumn, Value},
    sink::{Block, EncodeError, RowMeta},
    units::PG_EPOCH_UNIX_MICROS,
};

/// Columns of ours in every target table.
pub const META_COLUMNS: [(&str, &str); 3] =
    [("_lsn", "UInt64"), ("_deleted", "UInt8"), ("_committed_at", "DateTime64(6, 'UTC')")];

/// … and one more in the target of a table without a key.
pub const ORDINAL_COLUMN: (&str, &str) = ("_ordinal", "UInt64");

/// The columns of ours in a table's target.
pub fn meta_columns(table: &Table) -> impl Iterator<Item = (&'static str, &'static str)> {
    META_COLUMNS.into_iter().chain((!table.has_key()).then_some(ORDINAL_COLUMN))
}

/// Why one value cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    #[error("its bytes are not of the column's type")]
    Malformed,
    #[error("{0}")]
    NoRepresentation(&'static str),
    #[error("{0}")]
    OutOfRange(&'static str, Side),
    /// Of an array.
    #[error("{0}")]
    Shape(&'static str),
    #[error("a key of this type cannot be looked up in the target, which an unchanged TOAST value asks for")]
    NoKey,
    #[error("it is NULL, but the column is NOT NULL")]
    Null,
    #[error("it was not sent: a TOAST value that the update left unchanged")]
    UnchangedToast,
}

/// On which side of its range a value lies outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Below,
    Above,
}

/// The rows of one table that go to ClickHouse together.
#[derive(Debug)]
pub struct NativeBlock {
    columns: Vec<ColumnBuffer>,
    lsns: Vec<u8>,
    deleted: Vec<u8>,
    committed_at: Vec<u8>,
    /// Of a table without a key.
    ordinals: Option<Vec<u8>>,
    rows: u32,
    bytes: usize,
    sealed: Option<Sealed>,
}

/// A block ready to be sent, as often as it takes: its bytes, and the token by which the server knows it again.
#[derive(Debug)]
pub struct Sealed {
    pub pieces: Vec<Bytes>,
    pub token: String,
}

/// One source column's buffers: one target column, two for a nullable array.
#[derive(Debug)]
struct ColumnBuffer {
    name: String,
    column_type: ColumnType,
    /// A tombstone carries it.
    in_tombstone: bool,
    misfit: Misfit,
    shape_misfit: Misfit,
    /// Values that a policy has put something else in place of.
    replaced: u64,
    nulls: Vec<u8>,
    offsets: Vec<u8>,
    elements: u64,
    element_nulls: Vec<u8>,
    data: Vec<u8>,
}

impl NativeBlock {
    /// An empty block.
    pub fn new(table: &Table) -> Self {
        let has_key = table.has_key();
        let columns = table.columns.iter().map(|column| ColumnBuffer::new(column, has_key));
        NativeBlock {
            columns: columns.collect(),
            lsns: Vec::new(),
            deleted: Vec::new(),
            committed_at: Vec::new(),
            ordinals: (!has_key).then(Vec::new),
            rows: 0,
            bytes: 0,
            sealed: None,
        }
    }

    /// The block's rows as they will be sent; the first call makes them, with a token, and empties the buffers.
    pub fn seal(&mut self, token: impl FnOnce() -> String) -> &Sealed {
        if self.sealed.is_none() {
            let pieces = self.take_native();
            self.sealed = Some(Sealed { pieces, token: token() });
        }
        self.sealed.as_ref().expect("it was just made")
    }

    /// Forgets the sealed rows: they are durable.
    pub fn clear_sealed(&mut self) {
        self.sealed = None;
    }

    /// Appends a row whose unchanged values are found elsewhere: by column index, as RowBinary (an array's companion
    /// behind it).
    pub(super) fn push_completed<'a, 'b>(
        &mut self,
        values: impl Iterator<Item = Value<'a>>,
        found: impl Fn(usize) -> Option<&'b [u8]>,
        meta: RowMeta,
    ) -> Result<(), EncodeError> {
        let mut filled = 0;
        for (index, (column, value)) in self.columns.iter_mut().zip(values).enumerate() {
            let pushed = match (value, found(index)) {
                (Value::Unchanged, Some(bytes)) => column.push_row_binary(bytes),
                (value, _) => column.push(value),
            };
            self.bytes += pushed.map_err(|error| column.error(error))?;
            filled += 1;
        }
        self.end_row(filled, meta, false)
    }

    /// Ends a row of which `filled` columns were written.
    #[inline]
    fn end_row(&mut self, filled: usize, meta: RowMeta, deleted: bool) -> Result<(), EncodeError> {
        if filled != self.columns.len() {
            return Err(EncodeError::ColumnCount { expected: self.columns.len(), found: filled });
        }
        self.lsns.extend_from_slice(&meta.lsn.0.to_le_bytes());
        self.deleted.push(u8::from(deleted));
        self.committed_at.extend_from_slice(&meta.committed_at.unix_micros().to_le_bytes());
        if let Some(ordinals) = &mut self.ordinals {
            ordinals.extend_from_slice(&meta.ordinal.to_le_bytes());
        }
        self.rows += 1;
        self.bytes += 17;
        Ok(())
    }

    /// The block as Native, in pieces that own the column buffers; the block is empty afterwards, its capacity gone
    /// with the pieces.
    fn take_native(&mut self) -> Vec<Bytes> {
        let rows = self.rows;
        let count: usize = self.columns.iter().map(ColumnBuffer::target_columns).sum();
        let mut out = Pieces::default();
        let meta_count = META_COLUMNS.len() + usize::from(self.ordinals.is_some());
        put_varint(&mut out.head, (count + meta_count) as u64);
        put_varint(&mut out.head, u64::from(rows));
        for column in &mut self.columns {
            column.take_native(&mut out);
        }
        let meta = [&mut self.lsns, &mut self.deleted, &mut self.committed_at];
        for ((name, type_name), data) in META_COLUMNS.into_iter().zip(meta) {
            out.column_head(name, type_name);
            out.piece(data);
        }
        if let Some(ordinals) = &mut self.ordinals {
            out.column_head(ORDINAL_COLUMN.0, ORDINAL_COLUMN.1);
            out.piece(ordinals);
        }
        (self.rows, self.bytes) = (0, 0);
        out.finish()
    }
}

impl Block for NativeBlock {
    #[inline]
    fn push<'a>(
        &mut self,
        values: impl Iterator<Item = Value<'a>>,
        meta: RowMeta,
    ) -> Result<(), EncodeError> {
        let mut filled = 0;
        for (column, value) in self.columns.iter_mut().zip(values) {
            self.bytes += column.push(value).map_err(|error| column.error(error))?;
            filled += 1;
        }
        self.end_row(filled, meta, false)
    }

    fn push_tombstone<'a>(
        &mut self,
        key: impl Iterator<Item = Value<'a>>,
        meta: RowMeta,
    ) -> Result<(), EncodeError> {
        let mut filled = 0;
        for (column, value) in self.columns.iter_mut().zip(key) {
            self.bytes += if column.in_tombstone {
                column.push(value).map_err(|error| column.error(error))?
            } else {
                column.push_default()
            };
            filled += 1;
        }
        self.end_row(filled, meta, true)
    }

    fn rows(&self) -> u32 {
        self.rows
    }

    fn take_replaced(&mut self) -> Vec<(String, u64)> {
        let replaced = self.columns.iter_mut().filter(|column| column.replaced > 0);
        replaced.map(|column| (column.name.clone(), std::mem::take(&mut column.replaced))).collect()
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl ColumnBuffer {
    fn new(column: &TableColumn, has_key: bool) -> Self {
        ColumnBuffer {
            name: column.name.clone(),
            column_type: column_type(column),
            in_tombstone: !has_key || column.key_position.is_some(),
            misfit: column.misfit,
            shape_misfit: column.shape_misfit,
            replaced: 0,
            nulls: Vec::new(),
            offsets: Vec::new(),
            elements: 0,
            element_nulls: Vec::new(),
            data: Vec::new(),
        }
    }

    fn error(&self, error: ValueError) -> EncodeError {
        EncodeError::Value { column: self.name.clone(), target_type: self.column_type.to_string(), error }
    }

    /// Appends one value; returns about how many bytes it took.
    #[inline]
    fn push(&mut self, value: Value<'_>) -> Result<usize, ValueError> {
        let bytes = match value {
            Value::Binary(bytes) => bytes,
            Value::Text(text) => return self.push_text(text),
            Value::Null => return self.push_null(),
            Value::Unchanged => return Err(ValueError::UnchangedToast),
        };
        match self.column_type {
            ColumnType::Plain(scalar) => {
                self.put(scalar, |data| put_scalar(data, scalar, bytes))?;
            }
            ColumnType::Nullable(scalar) => {
                let is_null = self.put(scalar, |data| put_scalar(data, scalar, bytes))?;
                self.nulls.push(is_null);
            }
            ColumnType::Array { form: ArrayForm { is_text: true, .. }, .. } => return self.push_text(bytes),
            ColumnType::Array { element, form, nullable } => {
                let start = self.array_start();
                let pushed = self.push_array(element, form.element_oid, bytes);
                self.end_array(start, nullable, pushed)?;
            }
        }
        Ok(bytes.len() + 1)
    }

    /// Appends a value in PostgreSQL's text form.
    fn push_text(&mut self, text: &[u8]) -> Result<usize, ValueError> {
        match self.column_type {
            ColumnType::Plain(scalar) => {
                self.put(scalar, |data| text::put_scalar(data, scalar, text))?;
            }
            ColumnType::Nullable(scalar) => {
                let is_null = self.put(scalar, |data| text::put_scalar(data, scalar, text))?;
                self.nulls.push(is_null);
            }
            ColumnType::Array { element, form, nullable } => {
                let start = self.array_start();
                let pushed = array::items(text, form.delimiter).try_for_each(|item| match item? {
                    None => {
                        self.push_null_element(element);
                        Ok(())
                    }
                    Some(item) => self.put_element(element, |data| text::put_scalar(data, element, &item)),
                });
                self.end_array(start, nullable, pushed)?;
            }
        }
        Ok(text.len() + 1)
    }

    /// Appends a value, or what the column's policy puts in its place: 1 if that is NULL, else 0.
    #[inline]
    fn put(
        &mut self,
        scalar: Scalar,
        put: impl FnOnce(&mut Vec<u8>) -> Result<(), ValueError>,
    ) -> Result<u8, ValueError> {
        match put(&mut self.data) {
            Ok(()) => Ok(0),
            Err(error) => self.replace(scalar, error),
        }
    }

    #[cold]
    fn replace(&mut self, scalar: Scalar, error: ValueError) -> Result<u8, ValueError> {
        use ValueError::{NoRepresentation, OutOfRange};
        let is_null = match (self.misfit, error) {
            (Misfit::Null, NoRepresentation(_) | OutOfRange(..)) => {
                put_zero(&mut self.data, scalar);
                1
            }
            (Misfit::Clamp, OutOfRange(_, side)) => {
                put_bound(&mut self.data, scalar, side).ok_or(error)?;
                0
            }
            _ => return Err(error),
        };
        self.replaced += 1;
        Ok(is_null)
    }

    fn put_element(
        &mut self,
        element: Scalar,
        put: impl FnOnce(&mut Vec<u8>) -> Result<(), ValueError>,
    ) -> Result<(), ValueError> {
        let is_null = self.put(element, put)?;
        self.element_nulls.push(is_null);
        self.elements += 1;
        Ok(())
    }

    /// Where to go back to when an array turns out to have no place.
    fn array_start(&self) -> (u64, usize, usize) {
        (self.elements, self.element_nulls.len(), self.data.len())
    }

    fn end_array(
        &mut self,
        (elements, element_nulls, data): (u64, usize, usize),
        nullable: bool,
        pushed: Result<(), ValueError>,
    ) -> Result<(), ValueError> {
        match pushed {
            Err(ValueError::Shape(_)) if self.shape_misfit == Misfit::Null => {
                self.elements = elements;
                self.element_nulls.truncate(element_nulls);
                self.data.truncate(data);
                self.replaced += 1;
                self.push_default();
            }
            Err(error) => return Err(error),
            Ok(()) => {
                self.offsets.extend_from_slice(&self.elements.to_le_bytes());
                if nullable {
                    self.nulls.push(0);
                }
            }
        }
        Ok(())
    }

    fn push_null_element(&mut self, element: Scalar) {
        put_zero(&mut self.data, element);
        self.element_nulls.push(1);
        self.elements += 1;
    }

    fn push_null(&mut self) -> Result<usize, ValueError> {
        match self.column_type {
            ColumnType::Plain(_) | ColumnType::Array { nullable: false, .. } => Err(ValueError::Null),
            ColumnType::Nullable(_) | ColumnType::Array { .. } => Ok(self.push_default()),
        }
    }

    /// Appends a value as the target itself has it.
    fn push_row_binary(&mut self, bytes: &[u8]) -> Result<usize, ValueError> {
        let mut rest = bytes;
        match self.column_type {
            ColumnType::Plain(_) => self.data.extend_from_slice(bytes),
            ColumnType::Nullable(scalar) => {
                match lookup::take_nullable(&mut rest, scalar).ok_or(ValueError::Malformed)? {
                    None => drop(self.push_default()),
                    Some(value) => {
                        self.data.extend_from_slice(value);
                        self.nulls.push(0);
                    }
                }
            }
            ColumnType::Array { element, nullable, .. } => {
                for _ in 0..lookup::array_length(&mut rest).ok_or(ValueError::Malformed)? {
                    match lookup::take_nullable(&mut rest, element).ok_or(ValueError::Malformed)? {
                        None => self.push_null_element(element),
                        Some(value) => {
                            self.data.extend_from_slice(value);
                            self.element_nulls.push(0);
                            self.elements += 1;
                        }
                    }
                }
                self.offsets.extend_from_slice(&self.elements.to_le_bytes());
                if nullable {
                    self.nulls.push(*rest.first().ok_or(ValueError::Malformed)?);
                }
            }
        }
        Ok(bytes.len())
    }

    /// NULL where the column can be, else the type's zero: a tombstone's columns outside the key.
    fn push_default(&mut self) -> usize {
        match self.column_type {
            ColumnType::Plain(scalar) => put_zero(&mut self.data, scalar),
            ColumnType::Nullable(scalar) => {
                put_zero(&mut self.data, scalar);
                self.nulls.push(1);
            }
            ColumnType::Array { nullable, .. } => {
                self.offsets.extend_from_slice(&self.elements.to_le_bytes());
                if nullable {
                    self.nulls.push(1);
                }
            }
        }
        9
    }

    /// `array_send`: dimensions, flags, element oid, per dimension length and lower bound, then the elements.
    fn push_array(&mut self, element: Scalar, element_oid: u32, bytes: &[u8]) -> Result<(), ValueError> {
        let (head, rest) = bytes.split_first_chunk::<12>().ok_or(ValueError::Malformed)?;
        let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if word(8) != element_oid {
            return Err(ValueError::Malformed);
        }
        let before = self.elements;
        let mut announced = 0;
        let mut rest = match word(0) {
            0 => rest,
            1 => {
                let (shape, elements) = rest.split_first_chunk::<8>().ok_or(ValueError::Malformed)?;
                if shape[4..] != [0, 0, 0, 1] {
                    return Err(ValueError::Shape("its lower bound is not 1"));
                }
                announced = u64::from(u32::from_be_bytes([shape[0], shape[1], shape[2], shape[3]]));
                elements
            }
            _ => return Err(ValueError::Shape("it has more than one dimension")),
        };
        while !rest.is_empty() {
            rest = self.push_element(element, rest)?;
        }
        if self.elements - before == announced { Ok(()) } else { Err(ValueError::Malformed) }
    }

    fn push_element<'a>(&mut self, element: Scalar, bytes: &'a [u8]) -> Result<&'a [u8], ValueError> {
        let (length, rest) = bytes.split_first_chunk::<4>().ok_or(ValueError::Malformed)?;
        let length = i32::from_be_bytes(*length);
        if length == -1 {
            self.push_null_element(element);
            return Ok(rest);
        }
        let length = usize::try_from(length).map_err(|_| ValueError::Malformed)?;
        let (value, rest) = rest.split_at_checked(length).ok_or(ValueError::Malformed)?;
        self.put_element(element, |data| put_scalar(data, element, value))?;
        Ok(rest)
    }

    fn target_columns(&self) -> usize {
        if matches!(self.column_type, ColumnType::Array { nullable: true, .. }) { 2 } else { 1 }
    }

    fn take_native(&mut self, out: &mut Pieces) {
        out.column_head(&self.name, &self.column_type.wire_name());
        match self.column_type {
            ColumnType::Plain(_) => {}
            ColumnType::Nullable(_) => out.piece(&mut self.nulls),
            ColumnType::Array { .. } => {
                out.piece(&mut self.offsets);
                out.piece(&mut self.element_nulls);
                self.elements = 0;
            }
        }
        out.piece(&mut self.data);
        if self.target_columns() == 2 {
            out.column_head(&format!("{}{IS_NULL_SUFFIX}", self.name), "Bool");
            out.piece(&mut self.nulls);
        }
    }
}

/// Small pieces are copied into `head`, large ones handed over as they are.
#[derive(Default)]
struct Pieces {
    head: Vec<u8>,
    done: Vec<Bytes>,
}

impl Pieces {
    fn column_head(&mut self, name: &str, type_name: &str) {
        for text in [name, type_name] {
            put_varint(&mut self.head, text.len() as u64);
            self.head.extend_from_slice(text.as_bytes());
        }
    }

    fn piece(&mut self, data: &mut Vec<u8>) {
        const SMALL: usize = 4096;
        if data.len() < SMALL {
            self.head.append(data);
            return;
        }
        self.done.push(Bytes::from(std::mem::take(&mut self.head)));
        // The next block will be about as long.
        let next = Vec::with_capacity(data.len());
        self.done.push(Bytes::from(std::mem::replace(data, next)));
    }

    fn finish(mut self) -> Vec<Bytes> {
        if !self.head.is_empty() {
            self.done.push(Bytes::from(self.head));
        }
        self.done
    }
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(super) fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

#[inline]
fn fixed<const N: usize>(bytes: &[u8]) -> Result<[u8; N], ValueError> {
    bytes.try_into().map_err(|_| ValueError::Malformed)
}

/// The value reversed: PostgreSQL's big endian to ClickHouse's little endian.
#[inline]
fn put_reversed<const N: usize>(out: &mut Vec<u8>, bytes: &[u8]) -> Result<(), ValueError> {
    let mut value = fixed::<N>(bytes)?;
    value.reverse();
    out.extend_from_slice(&value);
    Ok(())
}

#[inline]
pub(super) fn put_scalar(out: &mut Vec<u8>, scalar: Scalar, bytes: &[u8]) -> Result<(), ValueError> {
    match scalar {
        Scalar::Bytes | Scalar::Text | Scalar::Enum => put_string(out, bytes),
        Scalar::Int64 | Scalar::Float64 | Scalar::UInt64 => return put_reversed::<8>(out, bytes),
        Scalar::Int32 | Scalar::Float32 | Scalar::UInt32 => return put_reversed::<4>(out, bytes),
        Scalar::DateTime64 { .. } => return put_timestamp(out, bytes),
        Scalar::Int16 => return put_reversed::<2>(out, bytes),
        Scalar::Bool => match bytes {
            [byte @ (0 | 1)] => out.push(*byte),
            _ => return Err(ValueError::Malformed),
        },
        Scalar::Decimal { precision, scale } => {
            return Numeric::parse(bytes)?.write_decimal(precision, scale, out);
        }
        Scalar::NumericText => put_numeric_text(out, bytes)?,
        Scalar::Jsonb => match bytes.split_first() {
            Some((1, text)) => put_string(out, text),
            _ => return Err(ValueError::Malformed),
        },
        Scalar::Uuid => {
            let (high, low) = bytes.split_at_checked(8).ok_or(ValueError::Malformed)?;
            put_reversed::<8>(out, high)?;
            return put_reversed::<8>(out, low);
        }
        Scalar::Date32 => return put_date(out, bytes),
        Scalar::Time64 => return put_reversed::<8>(out, bytes),
    }
    Ok(())
}

fn put_zero(out: &mut Vec<u8>, scalar: Scalar) {
    let width = match scalar {
        Scalar::Bool | Scalar::Bytes | Scalar::Text | Scalar::Enum | Scalar::NumericText | Scalar::Jsonb => 1,
        Scalar::Int16 => 2,
        Scalar::Int32 | Scalar::UInt32 | Scalar::Float32 | Scalar::Date32 => 4,
        Scalar::Int64 | Scalar::UInt64 | Scalar::Float64 | Scalar::Time64 | Scalar::DateTime64 { .. } => 8,
        Scalar::Uuid => 16,
        Scalar::Decimal { precision, .. } => decimal_width(precision),
    };
    out.extend_from_slice(&[0; 32][..width]);
}

fn put_numeric_text(out: &mut Vec<u8>, bytes: &[u8]) -> Result<(), ValueError> {
    let mut text = Vec::with_capacity(32);
    Numeric::parse(bytes)?.write_text(&mut text);
    put_string(out, &text);
    Ok(())
}

/// Days from 1970-01-01 of 0001-01-01 and 9999-12-31: what `Date32` keeps when it is written in binary.
const DATE32_DAYS: std::ops::RangeInclusive<i32> = -719_162..=2_932_896;
const PG_EPOCH_UNIX_DAYS: i32 = 10_957;

fn put_date(out: &mut Vec<u8>, bytes: &[u8]) -> Result<(), ValueError> {
    let days = i32::from_be_bytes(fixed(bytes)?);
    put_unix_days(out, days.saturating_add(PG_EPOCH_UNIX_DAYS))
}

/// Infinities are the extremes.
pub(super) fn put_unix_days(out: &mut Vec<u8>, days: i32) -> Result<(), ValueError> {
    if !DATE32_DAYS.contains(&days) {
        let side = if days < 0 { Side::Below } else { Side::Above };
        return Err(ValueError::OutOfRange("infinity, or outside of the years 1 to 9999", side));
    }
    out.extend_from_slice(&days.to_le_bytes());
    Ok(())
}

/// Microseconds from 1970 of 0000-01-01 00:00:00 and 9999-12-31 23:59:59.999999: what `DateTime64(6)` shows exactly.
const DATETIME64_MICROS: std::ops::RangeInclusive<i64> = -62_167_219_200_000_000..=253_402_300_799_999_999;

#[inline]
fn put_timestamp(out: &mut Vec<u8>, bytes: &[u8]) -> Result<(), ValueError> {
    let micros = i64::from_be_bytes(fixed(bytes)?);
    put_unix_micros(out, micros.saturating_add(PG_EPOCH_UNIX_MICROS))
}

/// Infinities are the extremes.
#[inline]
pub(super) fn put_unix_micros(out: &mut Vec<u8>, micros: i64) -> Result<(), ValueError> {
    if !DATETIME64_MICROS.contains(&micros) {
        let side = if micros < 0 { Side::Below } else { Side::Above };
        return Err(ValueError::OutOfRange("infinity, or outside of the years 0 to 9999", side));
    }
    out.extend_from_slice(&micros.to_le_bytes());
    Ok(())
}

/// The end of a type's range; `None` for a type without one.
fn put_bound(out: &mut Vec<u8>, scalar: Scalar, side: Side) -> Option<()> {
    match (scalar, side) {
        (Scalar::Date32, Side::Below) => out.extend_from_slice(&DATE32_DAYS.start().to_le_bytes()),
        (Scalar::Date32, Side::Above) => out.extend_from_slice(&DATE32_DAYS.end().to_le_bytes()),
        (Scalar::DateTime64 { .. }, Side::Below) => {
            out.extend_from_slice(&DATETIME64_MICROS.start().to_le_bytes());
        }
        (Scalar::DateTime64 { .. }, Side::Above) => {
            out.extend_from_slice(&DATETIME64_MICROS.end().to_le_bytes());
        }
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        change::{BaseType, Identity, Misfit, RelationId, TableColumn},
        postgres::oid,
        units::{Lsn, PgMicros},
    };

    fn table(columns: &[(&str, u32, bool, Option<u16>)]) -> Table {
        let columns = columns.iter().map(|&(name, type_oid, not_null, key_position)| TableColumn {
            name: name.to_owned(),
            type_oid,
            typmod: -1,
            type_name: "t".to_owned(),
            not_null,
            base: match type_oid {
                oid::INT4_ARRAY => BaseType::array(type_oid, oid::INT4),
                _ => BaseType::scalar(type_oid, -1),
            },
            is_binary: true,
            as_text: false,
            misfit: Misfit::Fail,
            shape_misfit: Misfit::Fail,
            key_position,
        });
        Table {
            id: RelationId(1),
            schema: "public".to_owned(),
            name: "t".to_owned(),
            identity: Identity::Default,
            columns: columns.collect(),
        }
    }

    const META: RowMeta = RowMeta { lsn: Lsn(0x0102), ordinal: 0, committed_at: PgMicros(0) };

    #[test]
    fn a_block_is_laid_out_as_native() {
        let mut block = NativeBlock::new(&table(&[
            ("id", oid::INT4, true, Some(0)),
            ("note", oid::TEXT, false, None),
            ("tags", oid::INT4_ARRAY, false, None),
        ]));
        let array = b"\0\0\0\x01\0\0\0\x01\0\0\0\x17\0\0\0\x02\0\0\0\x01\0\0\0\x04\0\0\0\x07\xff\xff\xff\xff";
        let row = [Value::Binary(&[0, 0, 0, 5]), Value::Null, Value::Binary(array)];
        block.push(row.into_iter(), META).unwrap();
        block
            .push_tombstone([Value::Binary(&[0, 0, 0, 6]), Value::Null, Value::Null].into_iter(), META)
            .unwrap();
        assert_eq!(block.rows(), 2);

        let committed_at = PG_EPOCH_UNIX_MICROS.to_le_bytes();
        let expected = [
            b"\x07\x02\x02id\x05Int32\x05\0\0\0\x06\0\0\0".as_slice(),
            b"\x04note\x10Nullable(String)\x01\x01\0\0",
            b"\x04tags\x16Array(Nullable(Int32))\x02\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\0\x01\x07\0\0\0\0\0\0\0",
            b"\x0dtags__is_null\x04Bool\0\x01",
            b"\x04_lsn\x06UInt64\x02\x01\0\0\0\0\0\0\x02\x01\0\0\0\0\0\0",
            b"\x08_deleted\x05UInt8\0\x01",
            b"\x0d_committed_at\x14DateTime64(6, 'UTC')",
            &committed_at,
            &committed_at,
        ]
        .concat();
        assert_eq!(block.take_native().concat(), expected);
        assert_eq!((block.rows(), block.bytes()), (0, 0));
    }

    #[test]
    fn what_has_no_place_is_refused_by_name() {
        let cases: [(u32, Value<'_>, ValueError); 7] = [
            (oid::INT4, Value::Null, ValueError::Null),
            (oid::INT4, Value::Binary(b"12"), ValueError::Malformed),
            (oid::INT4, Value::Text(b"1x"), ValueError::Malformed),
            (oid::TEXT, Value::Unchanged, ValueError::UnchangedToast),
            (oid::BOOL, Value::Binary(&[2]), ValueError::Malformed),
            (
                oid::DATE,
                Value::Binary(&[0x7F, 0xFF, 0xFF, 0xFF]),
                ValueError::OutOfRange("infinity, or outside of the years 1 to 9999", Side::Above),
            ),
            (
                oid::TIMESTAMP,
                Value::Binary(&[0x80, 0, 0, 0, 0, 0, 0, 0]),
                ValueError::OutOfRange("infinity, or outside of the years 0 to 9999", Side::Below),
            ),
        ];
        for (type_oid, value, expected) in cases {
            let mut block = NativeBlock::new(&table(&[("c", type_oid, true, Some(0))]));
            let error = block.push([value].into_iter(), META).unwrap_err();
            let EncodeError::Value { column, error, .. } = error else { panic!("{error}") };
            assert_eq!((column.as_str(), error), ("c", expected));
        }
    }

    #[test]
    fn multi_dimensional_and_shifted_arrays_are_refused() {
        let shifted = b"\0\0\0\x01\0\0\0\0\0\0\0\x17\0\0\0\x01\0\0\0\x05\0\0\0\x04\0\0\0\x07";
        let square =
            b"\0\0\0\x02\0\0\0\0\0\0\0\x17\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\0\0\x04\0\0\0\x07";
        let short = b"\0\0\0\x01\0\0\0\0\0\0\0\x17\0\0\0\x02\0\0\0\x01\0\0\0\x04\0\0\0\x07";
        for array in [shifted.as_slice(), square, short] {
            let mut block = NativeBlock::new(&table(&[("c", oid::INT4_ARRAY, true, None)]));
            assert!(block.push([Value::Binary(array)].into_iter(), META).is_err());
        }
    }
}
