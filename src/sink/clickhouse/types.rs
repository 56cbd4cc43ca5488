//! What each PostgreSQL type becomes in ClickHouse, and how its binary form is written there. Pure.
//!
//! The table is WIRE.md's, as far as docs/types.md says that it is done. A type that is not in it is refused before the
//! first row, with the column's name: nothing is ever squeezed into a type that cannot hold it.

use std::fmt;

use crate::{change::TableColumn, postgres::oid};

/// How one value is written: ClickHouse's type without `Nullable`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    Bool,
    Int16,
    Int32,
    Int64,
    Float32,
    Float64,
    /// 1 ≤ precision ≤ 76.
    Decimal {
        precision: u32,
        scale: u32,
    },
    /// PostgreSQL's text of a numeric, written from its binary form.
    NumericText,
    /// The bytes as they are: text, json, bytea.
    Bytes,
    /// The bytes behind a version byte of 1.
    Jsonb,
    Uuid,
    Date32,
    Time64,
    DateTime64 {
        utc: bool,
    },
}

/// A column's type in the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnType {
    Plain(Scalar),
    Nullable(Scalar),
    /// `Array(Nullable(T))`. ClickHouse has no nullable arrays: where the source's column may be NULL, a companion
    /// column `<name>__is_null Bool` tells NULL from `{}`.
    Array {
        element: Scalar,
        element_oid: u32,
        nullable: bool,
    },
}

/// The suffix of a nullable array's companion column.
pub const IS_NULL_SUFFIX: &str = "__is_null";

/// The target's type for a source column; `None`: not supported.
pub fn column_type(column: &TableColumn) -> Option<ColumnType> {
    if let Some((element, element_oid)) = array_element(column.type_oid) {
        return Some(ColumnType::Array { element, element_oid, nullable: !column.not_null });
    }
    let scalar = scalar(column.type_oid, column.typmod)?;
    Some(if column.not_null { ColumnType::Plain(scalar) } else { ColumnType::Nullable(scalar) })
}

fn array_element(type_oid: u32) -> Option<(Scalar, u32)> {
    Some(match type_oid {
        oid::INT2_ARRAY => (Scalar::Int16, oid::INT2),
        oid::INT4_ARRAY => (Scalar::Int32, oid::INT4),
        oid::INT8_ARRAY => (Scalar::Int64, oid::INT8),
        oid::TEXT_ARRAY => (Scalar::Bytes, oid::TEXT),
        oid::VARCHAR_ARRAY => (Scalar::Bytes, oid::VARCHAR),
        _ => return None,
    })
}

fn scalar(type_oid: u32, typmod: i32) -> Option<Scalar> {
    Some(match type_oid {
        oid::BOOL => Scalar::Bool,
        oid::INT2 => Scalar::Int16,
        oid::INT4 => Scalar::Int32,
        oid::INT8 => Scalar::Int64,
        oid::FLOAT4 => Scalar::Float32,
        oid::FLOAT8 => Scalar::Float64,
        oid::NUMERIC => numeric(typmod),
        oid::TEXT | oid::VARCHAR | oid::BPCHAR | oid::JSON | oid::BYTEA => Scalar::Bytes,
        oid::JSONB => Scalar::Jsonb,
        oid::UUID => Scalar::Uuid,
        oid::DATE => Scalar::Date32,
        oid::TIME => Scalar::Time64,
        oid::TIMESTAMP => Scalar::DateTime64 { utc: false },
        oid::TIMESTAMPTZ => Scalar::DateTime64 { utc: true },
        _ => return None,
    })
}

/// `numeric(p, s)` where it fits Decimal; the scale is an 11-bit signed field (WIRE.md, pgoutput 14).
fn numeric(typmod: i32) -> Scalar {
    if typmod < 4 {
        return Scalar::NumericText;
    }
    let precision = (typmod - 4) >> 16 & 0xFFFF;
    let scale = ((typmod - 4) & 0x7FF ^ 0x400) - 0x400;
    // s < 0: p digits followed by -s zeros; s > p: s - p zeros behind the point, then p digits.
    let (precision, scale) = (if scale < 0 { precision - scale } else { precision.max(scale) }, scale.max(0));
    match u32::try_from(precision) {
        Ok(precision @ 1..=76) => Scalar::Decimal { precision, scale: scale as u32 },
        _ => Scalar::NumericText,
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Bool => f.write_str("Bool"),
            Scalar::Int16 => f.write_str("Int16"),
            Scalar::Int32 => f.write_str("Int32"),
            Scalar::Int64 => f.write_str("Int64"),
            Scalar::Float32 => f.write_str("Float32"),
            Scalar::Float64 => f.write_str("Float64"),
            Scalar::Decimal { precision, scale } => write!(f, "Decimal({precision}, {scale})"),
            Scalar::NumericText | Scalar::Bytes | Scalar::Jsonb => f.write_str("String"),
            Scalar::Uuid => f.write_str("UUID"),
            Scalar::Date32 => f.write_str("Date32"),
            Scalar::Time64 => f.write_str("Time64(6)"),
            Scalar::DateTime64 { utc: false } => f.write_str("DateTime64(6)"),
            Scalar::DateTime64 { utc: true } => f.write_str("DateTime64(6, 'UTC')"),
        }
    }
}

/// As ClickHouse writes it in `system.columns`.
impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ColumnType::Plain(scalar) => scalar.fmt(f),
            ColumnType::Nullable(scalar) => write!(f, "Nullable({scalar})"),
            ColumnType::Array { element, .. } => write!(f, "Array(Nullable({element}))"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(type_oid: u32, typmod: i32, not_null: bool) -> TableColumn {
        let name = "c".to_owned();
        TableColumn { name, type_oid, typmod, type_name: String::new(), not_null, key_position: None }
    }

    /// `numeric(p, s)` as atttypmod holds it.
    fn typmod(precision: i32, scale: i32) -> i32 {
        (precision << 16 | scale & 0x7FF) + 4
    }

    #[test]
    fn numerics_become_decimals_only_where_every_value_fits() {
        for (typmod, expected) in [
            (-1, "String"),
            (typmod(10, 2), "Decimal(10, 2)"),
            (typmod(76, 38), "Decimal(76, 38)"),
            (typmod(77, 0), "String"),
            (typmod(3, -2), "Decimal(5, 0)"),
            (typmod(2, 4), "Decimal(4, 4)"),
            (typmod(1000, 0), "String"),
            (typmod(1000, 1000), "String"),
        ] {
            let column = column(oid::NUMERIC, typmod, true);
            assert_eq!(column_type(&column).unwrap().to_string(), expected, "{typmod}");
        }
    }

    #[test]
    fn nullability_and_arrays() {
        for (type_oid, not_null, expected) in [
            (oid::INT4, true, "Int32"),
            (oid::INT4, false, "Nullable(Int32)"),
            (oid::TIMESTAMPTZ, false, "Nullable(DateTime64(6, 'UTC'))"),
            (oid::TEXT_ARRAY, false, "Array(Nullable(String))"),
        ] {
            assert_eq!(column_type(&column(type_oid, -1, not_null)).unwrap().to_string(), expected);
        }
        assert_eq!(column_type(&column(869, -1, true)), None, "inet is not done yet");
    }
}
