//! Values that an update left unchanged and the source did not send, read back from the target. Pure but for one query.
//!
//! The value of an unchanged column belongs to the row of the OLD key, in its state just before the update: of that
//! key's versions the newest below the update's. A version of the new key that is not below the update's means that
//! this update was delivered before (a replay): its row would lose anyway, and is left out.
//!
//! Rows travel as RowBinary, whose scalars are laid out as Native's, so that what is read back goes into a block byte by
//! byte.

use std::{collections::HashMap, fmt::Write, ops::Range};

use bytes::Bytes;
use clickhouse::Client;

use super::{
    encode::{NativeBlock, put_scalar},
    insert,
    numeric::decimal_width,
    quote::{identifier, target_table},
    text,
    types::{ColumnType, IS_NULL_SUFFIX, Scalar, column_type},
};
use crate::{
    change::{Table, Value},
    sink::{Block, EncodeError, PartialRow, SinkError, clickhouse::encode::ValueError},
};

/// Keys asked for in one query.
const KEYS_A_QUERY: usize = 200;

/// The key of a row: its columns in table order, each as RowBinary has it.
pub fn key<'a>(table: &Table, values: impl Iterator<Item = Value<'a>>) -> Result<Vec<u8>, EncodeError> {
    let mut key = Vec::new();
    for (column, value) in table.columns.iter().zip(values) {
        if column.key_position.is_none() {
            continue;
        }
        let column_type = column_type(column);
        let put = match (column_type, value) {
            (ColumnType::Plain(scalar), Value::Binary(bytes)) => put_scalar(&mut key, scalar, bytes),
            (ColumnType::Plain(scalar), Value::Text(bytes)) => text::put_scalar(&mut key, scalar, bytes),
            (_, Value::Unchanged) => Err(ValueError::UnchangedToast),
            _ => Err(ValueError::NoKey),
        };
        put.map_err(|error| EncodeError::Value {
            column: column.name.clone(),
            target_type: column_type.to_string(),
            error,
        })?;
    }
    Ok(key)
}

/// Appends the rows, and the tombstones of their old keys, to a block.
pub async fn complete(
    client: &Client,
    database: &str,
    table: &Table,
    rows: &[PartialRow],
    block: &mut NativeBlock,
) -> Result<(), SinkError> {
    for rows in rows.chunks(KEYS_A_QUERY) {
        let missing = missing_columns(table, rows);
        let sql = query(database, table, rows, &missing)?;
        let query = client.query_raw(&sql).with_setting("wait_end_of_query", "1");
        let mut cursor = query.fetch_bytes("RowBinary").map_err(insert::sort_error)?;
        let bytes = cursor.collect().await.map_err(insert::sort_error)?;
        let versions = Versions::read(table, &missing, bytes).ok_or_else(|| {
            SinkError::Permanent(format!("rows of {table} read back from the target make no sense"))
        })?;
        for row in rows {
            push(table, row, &missing, &versions, block)?;
        }
    }
    Ok(())
}

/// Which columns at least one of the rows lacks, by index.
fn missing_columns(table: &Table, rows: &[PartialRow]) -> Vec<usize> {
    let lacks =
        |index: usize| rows.iter().any(|row| row.new.tuple().values().nth(index) == Some(Value::Unchanged));
    (0..table.columns.len()).filter(|index| lacks(*index)).collect()
}

fn query(database: &str, table: &Table, rows: &[PartialRow], missing: &[usize]) -> Result<String, SinkError> {
    let mut columns = Vec::new();
    for column in table.columns.iter().filter(|column| column.key_position.is_some()) {
        columns.push(identifier(&column.name));
    }
    columns.extend(["_lsn".to_owned(), "_deleted".to_owned()]);
    for index in missing {
        let column = &table.columns[*index];
        columns.push(identifier(&column.name));
        if matches!(column_type(column), ColumnType::Array { nullable: true, .. }) {
            columns.push(identifier(&format!("{}{IS_NULL_SUFFIX}", column.name)));
        }
    }
    let keys = rows.iter().flat_map(|row| [&row.old_key, &row.new_key]);
    let mut conditions: Vec<String> =
        keys.map(|key| condition(table, key).ok_or_else(|| no_key(table))).collect::<Result<_, _>>()?;
    conditions.sort();
    conditions.dedup();
    Ok(format!(
        "select {} from {} where {}",
        columns.join(", "),
        target_table(database, table),
        conditions.join(" or ")
    ))
}

fn no_key(table: &Table) -> SinkError {
    SinkError::Permanent(format!("a key of {table} cannot be looked up"))
}

/// `(a = 1 and b = 'x')`.
fn condition(table: &Table, key: &[u8]) -> Option<String> {
    let mut rest = key;
    let mut parts = Vec::new();
    for column in table.columns.iter().filter(|column| column.key_position.is_some()) {
        let ColumnType::Plain(scalar) = column_type(column) else { return None };
        let bytes = take_scalar(&mut rest, scalar)?;
        parts.push(equals(&identifier(&column.name), scalar, bytes)?);
    }
    rest.is_empty().then(|| format!("({})", parts.join(" and ")))
}

/// A comparison that the primary key's index serves, where ClickHouse can write the value exactly.
fn equals(column: &str, scalar: Scalar, bytes: &[u8]) -> Option<String> {
    let raw = |out: &mut String| bytes.iter().try_for_each(|byte| write!(out, "{byte:02x}"));
    let mut hex = String::new();
    Some(match scalar {
        Scalar::Bool => format!("{column} = {}", bytes.first()?),
        Scalar::Int16 => format!("{column} = {}", i16::from_le_bytes(bytes.try_into().ok()?)),
        Scalar::Int32 => format!("{column} = {}", i32::from_le_bytes(bytes.try_into().ok()?)),
        Scalar::Int64 => format!("{column} = {}", i64::from_le_bytes(bytes.try_into().ok()?)),
        Scalar::UInt32 => format!("{column} = {}", u32::from_le_bytes(bytes.try_into().ok()?)),
        Scalar::UInt64 => format!("{column} = {}", u64::from_le_bytes(bytes.try_into().ok()?)),
        Scalar::DateTime64 { .. } => {
            let micros = i64::from_le_bytes(bytes.try_into().ok()?);
            format!("{column} = fromUnixTimestamp64Micro({micros}, 'UTC')")
        }
        Scalar::Uuid => {
            let half = |range: Range<usize>| Some(u64::from_le_bytes(bytes.get(range)?.try_into().ok()?));
            let value = u128::from(half(0..8)?) << 64 | u128::from(half(8..16)?);
            let digits = format!("{value:032x}");
            let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
            format!("{column} = toUUID('{}')", parts.join("-"))
        }
        Scalar::Text | Scalar::Enum | Scalar::Bytes | Scalar::Jsonb | Scalar::NumericText => {
            let mut text = bytes;
            let length = varint(&mut text)?;
            (length == text.len() as u64).then_some(())?;
            text.iter().try_for_each(|byte| write!(hex, "{byte:02x}")).ok()?;
            format!("{column} = unhex('{hex}')")
        }
        // By the bytes: exact, though no index serves it.
        Scalar::Float32 | Scalar::Float64 | Scalar::Decimal { .. } | Scalar::Date32 | Scalar::Time64 => {
            raw(&mut hex).ok()?;
            format!("reinterpretAsFixedString({column}) = toFixedString(unhex('{hex}'), {})", bytes.len())
        }
    })
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (head, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(head)
}

fn take_scalar<'a>(bytes: &mut &'a [u8], scalar: Scalar) -> Option<&'a [u8]> {
    let width = match scalar {
        Scalar::Bool => 1,
        Scalar::Int16 => 2,
        Scalar::Int32 | Scalar::UInt32 | Scalar::Float32 | Scalar::Date32 => 4,
        Scalar::Int64 | Scalar::UInt64 | Scalar::Float64 | Scalar::Time64 | Scalar::DateTime64 { .. } => 8,
        Scalar::Uuid => 16,
        Scalar::Decimal { precision, .. } => decimal_width(precision),
        Scalar::Text | Scalar::Enum | Scalar::Bytes | Scalar::Jsonb | Scalar::NumericText => {
            let mut rest = *bytes;
            let length = usize::try_from(varint(&mut rest)?).ok()?;
            (bytes.len() - rest.len()).checked_add(length)?
        }
    };
    take(bytes, width)
}

/// A nullable scalar: a flag, then the value unless it is NULL.
pub(super) fn take_nullable<'a>(bytes: &mut &'a [u8], scalar: Scalar) -> Option<Option<&'a [u8]>> {
    match take(bytes, 1)? {
        [1] => Some(None),
        [0] => take_scalar(bytes, scalar).map(Some),
        _ => None,
    }
}

pub(super) fn array_length(bytes: &mut &[u8]) -> Option<u64> {
    varint(bytes)
}

/// One column's value, with an array's companion.
fn take_column<'a>(bytes: &mut &'a [u8], column_type: ColumnType) -> Option<&'a [u8]> {
    let start = *bytes;
    match column_type {
        ColumnType::Plain(scalar) => drop(take_scalar(bytes, scalar)?),
        ColumnType::Nullable(scalar) => drop(take_nullable(bytes, scalar)?),
        ColumnType::Array { element, nullable, .. } => {
            for _ in 0..varint(bytes)? {
                take_nullable(bytes, element)?;
            }
            if nullable {
                take(bytes, 1)?;
            }
        }
    }
    Some(&start[..start.len() - bytes.len()])
}

/// One version of a row in the target.
#[derive(Debug)]
struct Version {
    lsn: u64,
    is_deleted: bool,
    /// Of the missing columns, in their order: where in the answer each lies.
    columns: Vec<Range<usize>>,
}

/// Every version of every key asked for.
#[derive(Debug)]
struct Versions {
    answer: Bytes,
    of: HashMap<Vec<u8>, Vec<Version>>,
}

impl Versions {
    fn read(table: &Table, missing: &[usize], answer: Bytes) -> Option<Versions> {
        let mut of: HashMap<Vec<u8>, Vec<Version>> = HashMap::new();
        let mut rest: &[u8] = &answer;
        while !rest.is_empty() {
            let start = rest;
            for column in table.columns.iter().filter(|column| column.key_position.is_some()) {
                take_column(&mut rest, column_type(column))?;
            }
            let key = start[..start.len() - rest.len()].to_vec();
            let lsn = u64::from_le_bytes(take(&mut rest, 8)?.try_into().ok()?);
            let is_deleted = take(&mut rest, 1)? != [0];
            let mut columns = Vec::with_capacity(missing.len());
            for index in missing {
                let begin = answer.len() - rest.len();
                take_column(&mut rest, column_type(&table.columns[*index]))?;
                columns.push(begin..answer.len() - rest.len());
            }
            of.entry(key).or_default().push(Version { lsn, is_deleted, columns });
        }
        Some(Versions { answer, of })
    }

    /// The newest version of a key below another.
    fn before(&self, key: &[u8], lsn: u64) -> Option<&Version> {
        self.of.get(key)?.iter().filter(|version| version.lsn < lsn).max_by_key(|version| version.lsn)
    }

    fn has_from(&self, key: &[u8], lsn: u64) -> bool {
        self.of.get(key).is_some_and(|versions| versions.iter().any(|version| version.lsn >= lsn))
    }
}

fn push(
    table: &Table,
    row: &PartialRow,
    missing: &[usize],
    versions: &Versions,
    block: &mut NativeBlock,
) -> Result<(), SinkError> {
    let lsn = row.meta.lsn.0;
    let encode = |error: EncodeError| SinkError::Permanent(format!("table {table}: {error}"));
    if let Some(old) = &row.old {
        block.push_tombstone(old.tuple().values(), row.meta).map_err(encode)?;
    }
    if versions.has_from(&row.new_key, lsn) {
        return Ok(());
    }
    let before = versions.before(&row.old_key, lsn).filter(|version| !version.is_deleted);
    let before = before.ok_or_else(|| {
        SinkError::Permanent(format!(
            "an update of {table} leaves large values unchanged, and the row that holds them is not in the target \
             (it was removed there); load the table anew, or alter table {table} replica identity full"
        ))
    })?;
    let found = |index: usize| {
        let place = missing.iter().position(|missing| *missing == index)?;
        versions.answer.get(before.columns[place].clone())
    };
    block.push_completed(row.new.tuple().values(), found, row.meta).map_err(encode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_compared_exactly() {
        for (scalar, bytes, expected) in [
            (Scalar::Int32, (-5i32).to_le_bytes().to_vec(), "c = -5"),
            (Scalar::Text, b"\x03it'".to_vec(), "c = unhex('697427')"),
            (Scalar::Bool, vec![1], "c = 1"),
            (
                Scalar::DateTime64 { utc: true },
                7i64.to_le_bytes().to_vec(),
                "c = fromUnixTimestamp64Micro(7, 'UTC')",
            ),
            (
                Scalar::Uuid,
                [0x0011_2233_4455_6677u64.to_le_bytes(), 0x8899_aabb_ccdd_eeffu64.to_le_bytes()].concat(),
                "c = toUUID('00112233-4455-6677-8899-aabbccddeeff')",
            ),
            (
                Scalar::Date32,
                vec![1, 0, 0, 0],
                "reinterpretAsFixedString(c) = toFixedString(unhex('01000000'), 4)",
            ),
        ] {
            assert_eq!(equals("c", scalar, &bytes).as_deref(), Some(expected));
        }
        assert_eq!(equals("c", Scalar::Int32, b"x"), None);
        assert_eq!(equals("c", Scalar::Text, b"\x05x"), None);
    }

    #[test]
    fn columns_are_cut_out_of_rows() {
        let mut rest: &[u8] = b"\x02ab\x01\x00\x03\x01\x00\x07\x00rest";
        assert_eq!(take_column(&mut rest, ColumnType::Plain(Scalar::Text)), Some(b"\x02ab".as_slice()));
        assert_eq!(take_column(&mut rest, ColumnType::Nullable(Scalar::Int32)), Some(b"\x01".as_slice()));
        assert_eq!(
            take_column(&mut rest, ColumnType::Nullable(Scalar::Int16)),
            Some(b"\x00\x03\x01".as_slice())
        );
        assert_eq!(take_column(&mut rest, ColumnType::Plain(Scalar::Int64)), None, "cut short");
    }
}
