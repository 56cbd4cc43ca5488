//! What each PostgreSQL type becomes in ClickHouse, and how its binary form is written there. Pure.
//!
//! The table is that of docs/types.md. A type that is not in it becomes its text: nothing is ever squeezed into a type that
//! cannot hold it.

use std::fmt;

use crate::{
    change::{Misfit, TableColumn},
    postgres::oid,
};

/// How one value is written: ClickHouse's type without `Nullable`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    Bool,
    Int16,
    Int32,
    Int64,
    /// oid.
    UInt32,
    /// xid8.
    UInt64,
    Float32,
    Float64,
    /// 1 ≤ precision ≤ 76.
    Decimal {
        precision: u32,
        scale: u32,
    },
    /// PostgreSQL's text of a numeric, written from its binary form.
    NumericText,
    /// PostgreSQL's text: the bytes as they are, in either form. What has no binary form here comes as text only.
    Text,
    /// A label of an enum: text in either form.
    Enum,
    /// bytea: the raw bytes.
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
        nullable: bool,
        form: ArrayForm,
    },
}

/// How an array arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayForm {
    /// As `array_send` names the element's type.
    pub element_oid: u32,
    /// Between two elements of the text form.
    pub delimiter: u8,
    /// It comes as text even where binary values are asked for.
    pub is_text: bool,
}

/// The suffix of a nullable array's companion column.
pub const IS_NULL_SUFFIX: &str = "__is_null";

/// The target's type for a source column. A type that is not in the table of docs/types.md becomes its text.
pub fn column_type(column: &TableColumn) -> ColumnType {
    let nullable = !column.not_null || column.misfit == Misfit::Null;
    if column.as_text {
        return if column.not_null {
            ColumnType::Plain(Scalar::Text)
        } else {
            ColumnType::Nullable(Scalar::Text)
        };
    }
    if let Some(element) = column.base.element.filter(|element| !element.is_array) {
        let form = ArrayForm {
            element_oid: element.declared_oid,
            delimiter: element.delimiter,
            is_text: !column.is_binary,
        };
        let element = if element.is_enum { Scalar::Enum } else { scalar(element.oid, column.base.typmod) };
        let nullable = !column.not_null || column.shape_misfit == Misfit::Null;
        return ColumnType::Array { element, nullable, form };
    }
    let scalar = match column.base {
        base if base.is_enum => Scalar::Enum,
        // Of arrays below a domain.
        base if base.element.is_some() => Scalar::Text,
        base => scalar(base.oid, base.typmod),
    };
    if nullable { ColumnType::Nullable(scalar) } else { ColumnType::Plain(scalar) }
}

fn scalar(type_oid: u32, typmod: i32) -> Scalar {
    match type_oid {
        oid::BOOL => Scalar::Bool,
        oid::INT2 => Scalar::Int16,
        oid::INT4 => Scalar::Int32,
        oid::INT8 => Scalar::Int64,
        oid::OID => Scalar::UInt32,
        oid::XID8 => Scalar::UInt64,
        oid::FLOAT4 => Scalar::Float32,
        oid::FLOAT8 => Scalar::Float64,
        oid::NUMERIC => numeric(typmod),
        oid::BYTEA => Scalar::Bytes,
        oid::JSONB => Scalar::Jsonb,
        oid::UUID => Scalar::Uuid,
        oid::DATE => Scalar::Date32,
        oid::TIME => Scalar::Time64,
        oid::TIMESTAMP => Scalar::DateTime64 { utc: false },
        oid::TIMESTAMPTZ => Scalar::DateTime64 { utc: true },
        _ => Scalar::Text,
    }
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

impl Scalar {
    /// The type in which a block carries it; ClickHouse turns the one into the other.
    fn wire_name(self) -> String {
        match self {
            Scalar::Enum => "String".to_owned(),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Bool => f.write_str("Bool"),
            Scalar::Int16 => f.write_str("Int16"),
            Scalar::Int32 => f.write_str("Int32"),
            Scalar::Int64 => f.write_str("Int64"),
            Scalar::UInt32 => f.write_str("UInt32"),
            Scalar::UInt64 => f.write_str("UInt64"),
            Scalar::Float32 => f.write_str("Float32"),
            Scalar::Float64 => f.write_str("Float64"),
            Scalar::Decimal { precision, scale } => write!(f, "Decimal({precision}, {scale})"),
            Scalar::NumericText | Scalar::Text | Scalar::Bytes | Scalar::Jsonb => f.write_str("String"),
            Scalar::Enum => f.write_str("LowCardinality(String)"),
            Scalar::Uuid => f.write_str("UUID"),
            Scalar::Date32 => f.write_str("Date32"),
            Scalar::Time64 => f.write_str("Time64(6)"),
            Scalar::DateTime64 { utc: false } => f.write_str("DateTime64(6)"),
            Scalar::DateTime64 { utc: true } => f.write_str("DateTime64(6, 'UTC')"),
        }
    }
}

impl ColumnType {
    /// The type in which a block carries the column.
    pub fn wire_name(self) -> String {
        match self {
            ColumnType::Plain(scalar) => scalar.wire_name(),
            ColumnType::Nullable(scalar) => format!("Nullable({})", scalar.wire_name()),
            ColumnType::Array { element, .. } => format!("Array(Nullable({}))", element.wire_name()),
        }
    }
}

/// As ClickHouse writes it in `system.columns`.
impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ColumnType::Plain(scalar) => scalar.fmt(f),
            ColumnType::Nullable(Scalar::Enum) => f.write_str("LowCardinality(Nullable(String))"),
            ColumnType::Nullable(scalar) => write!(f, "Nullable({scalar})"),
            ColumnType::Array { element: Scalar::Enum, .. } => {
                f.write_str("Array(LowCardinality(Nullable(String)))")
            }
            ColumnType::Array { element, .. } => write!(f, "Array(Nullable({element}))"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::{BaseType, Misfit};

    fn column(type_oid: u32, typmod: i32, not_null: bool) -> TableColumn {
        let base = match type_oid {
            oid::TEXT_ARRAY => BaseType::array(type_oid, oid::TEXT),
            _ => BaseType::scalar(type_oid, typmod),
        };
        TableColumn {
            name: "c".to_owned(),
            type_oid,
            typmod,
            type_name: String::new(),
            not_null,
            base,
            is_binary: true,
            as_text: false,
            misfit: Misfit::Fail,
            shape_misfit: Misfit::Fail,
            key_position: None,
        }
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
            assert_eq!(column_type(&column).to_string(), expected, "{typmod}");
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
            assert_eq!(column_type(&column(type_oid, -1, not_null)).to_string(), expected);
        }
        assert_eq!(column_type(&column(869, -1, true)), ColumnType::Plain(Scalar::Text), "inet");
        let mut mood = column(90_000, -1, false);
        mood.base.is_enum = true;
        let mood = column_type(&mood);
        assert_eq!(mood.to_string(), "LowCardinality(Nullable(String))");
        assert_eq!(mood.wire_name(), "Nullable(String)");
    }
}
