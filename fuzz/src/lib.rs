//! What the fuzz targets do with their bytes. `tests/it/decode.rs` includes this file too and replays the corpus with it.
//!
//! Inputs are sequences of pieces, each behind its length as four big-endian bytes: the shape of fixtures/wire/*.bin.

use cdcprobe::{
    change::{BaseType, Event, Identity, Misfit, OldRow, RelationId, Table, TableColumn, Tuple, Value},
    postgres::oid,
    sink::{
        Block, RowMeta,
        clickhouse::{encode::NativeBlock, numeric::Numeric},
    },
    source::{copy::CopyDecoder, pgoutput::Decoder},
    units::{Lsn, PgMicros},
};

/// The pieces of an input; the last one may be shorter than it says.
pub fn pieces(mut data: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = data.split_first_chunk::<4>()?;
        let length = (u32::from_be_bytes(*length) as usize).min(rest.len());
        let (piece, rest) = rest.split_at(length);
        data = rest;
        Some(piece)
    })
}

/// One session's messages through one decoder; every tuple's values must be as many as it says.
pub fn pgoutput(data: &[u8]) {
    let mut decoder = Decoder::default();
    for message in pieces(data) {
        let Ok(event) = decoder.decode(message) else { continue };
        for (_, tuple) in tuples(&event) {
            assert_eq!(tuple.values().count(), tuple.len());
        }
    }
}

/// The rows in an event, by role.
pub fn tuples<'a>(event: &Event<'a>) -> Vec<(&'static str, Tuple<'a>)> {
    let before = |old: &OldRow<'a>| match old {
        OldRow::Key(tuple) => ("key", *tuple),
        OldRow::Full(tuple) => ("old", *tuple),
    };
    match event {
        Event::Insert { new, .. } => vec![("new", *new)],
        Event::Update { old, new, .. } => old.iter().map(before).chain([("new", *new)]).collect(),
        Event::Delete { old, .. } => vec![before(old)],
        _ => Vec::new(),
    }
}

/// The first byte: how many columns were asked for; then one COPY's messages.
pub fn copy(data: &[u8]) {
    let Some((&columns, data)) = data.split_first() else { return };
    let mut decoder = CopyDecoder::new(u16::from(columns));
    for message in pieces(data) {
        if let Ok(Some(row)) = decoder.decode(message) {
            assert_eq!(row.values().count(), usize::from(columns));
        }
    }
}

/// Type oid and type modifier of every supported type; `numeric` three times.
pub const TYPES: [(u32, i32); 26] = [
    (oid::BOOL, -1),
    (oid::BYTEA, -1),
    (oid::INT8, -1),
    (oid::INT2, -1),
    (oid::INT4, -1),
    (oid::TEXT, -1),
    (oid::JSON, -1),
    (oid::FLOAT4, -1),
    (oid::FLOAT8, -1),
    (oid::VARCHAR, -1),
    (oid::DATE, -1),
    (oid::TIME, -1),
    (oid::TIMESTAMP, -1),
    (oid::TIMESTAMPTZ, -1),
    (oid::NUMERIC, -1),
    (oid::NUMERIC, (10 << 16 | 2) + 4),
    (oid::NUMERIC, (76 << 16 | 38) + 4),
    (oid::UUID, -1),
    (oid::OID, -1),
    (oid::XID8, -1),
    (oid::JSONB, -1),
    (oid::INT2_ARRAY, -1),
    (oid::INT4_ARRAY, -1),
    (oid::TEXT_ARRAY, -1),
    (oid::VARCHAR_ARRAY, -1),
    (oid::INT8_ARRAY, -1),
];

fn element(array: u32) -> Option<u32> {
    Some(match array {
        oid::INT2_ARRAY => oid::INT2,
        oid::INT4_ARRAY => oid::INT4,
        oid::INT8_ARRAY => oid::INT8,
        oid::TEXT_ARRAY => oid::TEXT,
        oid::VARCHAR_ARRAY => oid::VARCHAR,
        _ => return None,
    })
}

/// The first byte chooses the type (and, by its top bits, NOT NULL and the text form); every piece is a value, an empty one NULL as well where it may be.
/// A block that took its rows must read back as Native, to the last byte, with as many rows.
pub fn native(data: &[u8]) {
    let Some((&head, data)) = data.split_first() else { return };
    let (type_oid, typmod) = TYPES[usize::from(head & 0x3F) % TYPES.len()];
    let text = head & 0x40 != 0;
    let column = |name: &str, type_oid, typmod, not_null, key_position| TableColumn {
        name: name.to_owned(),
        type_oid,
        typmod,
        type_name: name.to_owned(),
        not_null,
        base: match element(type_oid) {
            Some(element) => BaseType::array(type_oid, element),
            None => BaseType::scalar(type_oid, typmod),
        },
        is_binary: true,
        as_text: false,
        misfit: Misfit::Fail,
        shape_misfit: Misfit::Fail,
        key_position,
    };
    let table = Table {
        id: RelationId(1),
        schema: "public".to_owned(),
        name: "t".to_owned(),
        identity: Identity::Default,
        columns: vec![
            column("id", oid::INT4, -1, true, Some(0)),
            column("value", type_oid, typmod, head & 0x80 != 0, None),
        ],
    };
    let mut block = NativeBlock::new(&table);
    let meta = RowMeta { lsn: Lsn(1), ordinal: 0, committed_at: PgMicros(0) };
    let mut rows = 0;
    for piece in pieces(data) {
        let nothing: &[Value<'_>] = if piece.is_empty() && head & 0x80 == 0 { &[Value::Null] } else { &[] };
        let value = if text { Value::Text(piece) } else { Value::Binary(piece) };
        for value in nothing.iter().copied().chain([value]) {
            // After an error the block is unusable, as its contract says.
            if block.push([Value::Binary(&[0, 0, 0, 1]), value].into_iter(), meta).is_err() {
                return;
            }
            let key = [Value::Binary(&[0, 0, 0, 2]), Value::Null];
            block.push_tombstone(key.into_iter(), meta).expect("a tombstone needs its key only");
            rows += 2;
        }
    }
    assert_eq!(block.rows(), rows);
    let bytes = block.seal(String::new).pieces.concat();
    assert_eq!(native_rows(&bytes), Some(u64::from(rows)), "{type_oid} does not read back as Native");
}

/// Reads a Native block to its last byte, checking every length; its rows.
fn native_rows(mut bytes: &[u8]) -> Option<u64> {
    let bytes = &mut bytes;
    let (columns, rows) = (varint(bytes)?, varint(bytes)?);
    for _ in 0..columns {
        string(bytes)?;
        let type_name = std::str::from_utf8(string(bytes)?).ok()?;
        column(bytes, type_name, rows)?;
    }
    bytes.is_empty().then_some(rows)
}

fn column(bytes: &mut &[u8], type_name: &str, rows: u64) -> Option<()> {
    if let Some(element) = inner(type_name, "Array(") {
        let mut end = 0;
        for offset in take(bytes, rows * 8)?.chunks_exact(8) {
            let offset = u64::from_le_bytes(offset.try_into().ok()?);
            end = (offset >= end).then_some(offset)?;
        }
        return column(bytes, element, end);
    }
    if let Some(element) = inner(type_name, "Nullable(") {
        take(bytes, rows)?.iter().all(|&null| null <= 1).then_some(())?;
        return column(bytes, element, rows);
    }
    if type_name == "String" {
        return (0..rows).try_for_each(|_| string(bytes).map(drop));
    }
    take(bytes, rows * width(type_name)?).map(drop)
}

fn inner<'a>(type_name: &'a str, outer: &str) -> Option<&'a str> {
    type_name.strip_prefix(outer)?.strip_suffix(')')
}

fn width(type_name: &str) -> Option<u64> {
    let (name, arguments) = type_name.split_once('(').unwrap_or((type_name, ""));
    Some(match name {
        "Bool" | "UInt8" => 1,
        "Int16" => 2,
        "Int32" | "UInt32" | "Float32" | "Date32" => 4,
        "Int64" | "UInt64" | "Float64" | "Time64" | "DateTime64" => 8,
        "UUID" => 16,
        "Decimal" => match arguments.split_once(',')?.0.parse().ok()? {
            0..=9 => 4,
            10..=18 => 8,
            19..=38 => 16,
            _ => 32,
        },
        _ => return None,
    })
}

fn take<'a>(bytes: &mut &'a [u8], length: u64) -> Option<&'a [u8]> {
    let (head, rest) = bytes.split_at_checked(usize::try_from(length).ok()?)?;
    *bytes = rest;
    Some(head)
}

fn string<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = varint(bytes)?;
    take(bytes, length)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(bytes, 1)?[0];
        value |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// A numeric's text is a number with as many digits behind the point as it says; its decimals have their width.
pub fn numeric(data: &[u8]) {
    let Ok(numeric) = Numeric::parse(data) else { return };
    let mut text = Vec::new();
    numeric.write_text(&mut text);
    let is_special = text.iter().any(u8::is_ascii_alphabetic);
    if !is_special {
        let scale = usize::from(u16::from_be_bytes([data[6], data[7]]));
        let behind = text.iter().position(|&byte| byte == b'.').map_or(0, |point| text.len() - point - 1);
        assert_eq!(behind, scale, "{}", text.escape_ascii());
    }
    for (precision, scale, width) in [(9, 0, 4), (10, 2, 8), (38, 10, 16), (76, 38, 32)] {
        let mut out = Vec::new();
        match numeric.write_decimal(precision, scale, &mut out) {
            Ok(()) => assert_eq!(out.len(), width),
            Err(_) => assert!(out.is_empty()),
        }
    }
}
