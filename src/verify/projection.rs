//! How each side writes a column so that equal values are equal texts.
//!
//! PostgreSQL writes its own text wherever that is exact and cheap; ClickHouse is asked for the same text. Neither
//! expression knows of our encoder: a mistake there shows here. Exceptions: floats are compared by their bits (every
//! NaN is one), for the two servers write them differently; decimals without trailing zeros, for a target may have
//! been made with another scale.

use anyhow::Result;

use super::{catalog::Column, order::KeyOrder};
use crate::{
    failure::{Failure, Kind},
    postgres::{oid, quote as pg},
    sink::clickhouse::quote::identifier,
};

/// A column's two expressions and how its text is shown and ordered.
#[derive(Clone, Debug, PartialEq)]
pub struct Projection {
    pub source: String,
    pub target: String,
    pub is_float: bool,
    pub order: KeyOrder,
    /// What to sort by, when the column is in the key.
    pub source_order: String,
    pub target_order: String,
    /// Whether ranges can be cut by values of the column, and how a value is written for each side.
    pub bound: Option<Bound>,
}

/// How a value of a key column is written as a bound of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// As it is: digits.
    Number,
    /// As a quoted text.
    Text,
    /// As a quoted text, cast to uuid in the source; the target compares texts.
    Uuid,
}

/// The target's side of a column.
#[derive(Clone, Copy, Debug)]
pub struct TargetColumn<'a> {
    pub name: &'a str,
    /// As `system.columns` has it.
    pub type_name: &'a str,
    /// The column that is true where the source's array is NULL, which ClickHouse cannot say in the array itself.
    pub is_null_companion: Option<&'a str>,
}

/// Both expressions of a column.
///
/// Errors: a broken invariant when the target's type cannot hold the source's values in a form that we can compare.
pub fn project(column: &Column, target: TargetColumn<'_>) -> Result<Projection> {
    let (source, target_name) = (pg::identifier(&column.name), identifier(target.name));
    let base = base_type(target.type_name);
    let kind = base.split('(').next().unwrap_or_default();
    let plain = |order| Projection {
        source: source.clone(),
        target: target_name.clone(),
        is_float: false,
        order,
        source_order: source.clone(),
        target_order: target_name.clone(),
        bound: None,
    };
    let written = |text: String, order| Projection { target: text, ..plain(order) };
    let bytewise =
        || Projection { source_order: format!("{source} collate \"C\""), ..plain(KeyOrder::Bytes) };
    let projection = match (column.base.oid, kind) {
        (oid::BOOL, "Bool") => {
            written(format!("if(isNull({target_name}), NULL, if({target_name}, 't', 'f'))"), KeyOrder::Bytes)
        }
        (oid::INT2 | oid::INT4 | oid::INT8 | oid::OID, integer) if is_integer(integer) => {
            Projection { bound: Some(Bound::Number), ..plain(KeyOrder::Integer) }
        }
        (oid::FLOAT4, "Float32") => float(plain(KeyOrder::Float), "float4send", "reinterpretAsUInt32", 8),
        (oid::FLOAT8, "Float64") => float(plain(KeyOrder::Float), "float8send", "reinterpretAsUInt64", 16),
        (oid::NUMERIC, "Decimal") => {
            let source_text = format!("trim_scale({source})");
            Projection {
                source: source_text,
                target: format!("toString({target_name})"),
                ..plain(KeyOrder::Decimal)
            }
        }
        (oid::TEXT | oid::VARCHAR, "String") => Projection { bound: Some(Bound::Text), ..bytewise() },
        (oid::BYTEA, "String") => {
            written(format!("concat('\\\\x', lower(hex({target_name})))"), KeyOrder::Bytes)
        }
        (oid::UUID, "UUID") => {
            let text = format!("toString({target_name})");
            Projection {
                target: text.clone(),
                target_order: text,
                bound: Some(Bound::Uuid),
                ..plain(KeyOrder::Bytes)
            }
        }
        (oid::DATE, "Date32" | "Date") => plain(KeyOrder::Temporal),
        (oid::TIME, "Time64") => written(
            trimmed(&format!("toString(CAST({target_name} AS Nullable(Time64(6))))")),
            KeyOrder::Bytes,
        ),
        (oid::TIMESTAMP, "DateTime64") => written(utc(&target_name), KeyOrder::Temporal),
        (oid::TIMESTAMPTZ, "DateTime64") => {
            written(format!("concat({}, '+00')", utc(&target_name)), KeyOrder::Temporal)
        }
        (oid::XID8, integer) if is_integer(integer) => plain(KeyOrder::Integer),
        (_, "Array") if column.base.element.is_some() => array(column, target, &source, &target_name)?,
        // Whatever else the target keeps as text must be PostgreSQL's own text, which COPY writes.
        (_, "String") => {
            Projection { source_order: format!("concat({source}) collate \"C\""), ..plain(KeyOrder::Bytes) }
        }
        _ => return Err(incomparable(column, target).into()),
    };
    Ok(projection)
}

fn incomparable(column: &Column, target: TargetColumn<'_>) -> Failure {
    let (name, oid, held) = (&column.name, column.base.oid, target.type_name);
    Failure::new(Kind::Invariant, format!("column {name} (type oid {oid}) cannot be compared with {held}"))
        .hint("give the target's column the type that `docs/types.md` names for the source's")
}

/// `Nullable` and `LowCardinality` taken off.
fn base_type(type_name: &str) -> &str {
    let wrapped = ["Nullable(", "LowCardinality("].iter().find_map(|wrapper| type_name.strip_prefix(wrapper));
    match wrapped.and_then(|inner| inner.strip_suffix(')')) {
        Some(inner) => base_type(inner),
        None => type_name,
    }
}

fn is_integer(kind: &str) -> bool {
    kind.trim_start_matches('U').strip_prefix("Int").is_some_and(|bits| bits.parse::<u16>().is_ok())
}

fn float(plain: Projection, send: &str, reinterpret: &str, digits: u32) -> Projection {
    let (source, target) = (&plain.source, &plain.target);
    Projection {
        source: format!("case when {source} = 'NaN' then 'NaN' else encode({send}({source}), 'hex') end"),
        target: format!(
            "if(isNaN({target}), 'NaN', lower(leftPad(hex({reinterpret}({target})), {digits}, '0')))"
        ),
        is_float: true,
        ..plain
    }
}

/// A time of day or timestamp without the zeros, and the point, that PostgreSQL does not write.
fn trimmed(text: &str) -> String {
    format!("trimRight(trimRight({text}, '0'), '.')")
}

/// A DateTime64 as PostgreSQL writes it in UTC. With six digits there is always a point, so that no zero of the seconds
/// is trimmed.
fn utc(column: &str) -> String {
    trimmed(&format!("toString(CAST({column} AS Nullable(DateTime64(6, 'UTC'))))"))
}

/// Both sides as PostgreSQL's literal of an array of texts (manual, section "Array Input and Output Syntax"), each element
/// written as a column of its type would be.
fn array(
    column: &Column,
    target: TargetColumn<'_>,
    source_name: &str,
    target_name: &str,
) -> Result<Projection> {
    const ELEMENT: &str = "element";
    let base = column.base.element_type().ok_or_else(|| incomparable(column, target))?;
    let inner = base_type(target.type_name)
        .strip_prefix("Array(")
        .and_then(|inner| inner.strip_suffix(')'))
        .ok_or_else(|| incomparable(column, target))?;
    let element = Column { name: ELEMENT.to_owned(), base };
    let element =
        project(&element, TargetColumn { name: ELEMENT, type_name: inner, is_null_companion: None })?;
    // `concat` writes any type as COPY does; it turns NULL into an empty text.
    let text = format!(
        "case when {name} is distinct from null then concat({}) end",
        element.source,
        name = pg::identifier(ELEMENT)
    );
    // By subscript: `unnest` would take row types apart.
    let source = format!(
        "case when cardinality({source_name}) = 0 then '{{}}' else (select array_agg({text} order by place)::text \
         from (select ({source_name})[place] as {}, place from generate_subscripts({source_name}, 1) place) list) end",
        pg::identifier(ELEMENT)
    );
    let quoted = r#"multiIf(x IS NULL, 'NULL', x = '' OR lower(x) = 'null' OR match(x, '[{},"\\\\ \\t\\n\\r\\x0b\\f]'), concat('"', replaceAll(replaceAll(x, '\\', '\\\\'), '"', '\\"'), '"'), x)"#;
    let literal = format!(
        "concat('{{', arrayStringConcat(arrayMap(x -> assumeNotNull({quoted}), arrayMap({} -> \
         CAST({} AS Nullable(String)), {target_name})), ','), '}}')",
        identifier(ELEMENT),
        element.target
    );
    let literal = match target.is_null_companion {
        Some(companion) => format!("if({}, NULL, {literal})", identifier(companion)),
        None => literal,
    };
    Ok(Projection {
        source: source.clone(),
        target: literal.clone(),
        is_float: false,
        order: KeyOrder::Bytes,
        source_order: source,
        target_order: literal,
        bound: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::BaseType;

    fn projected(type_oid: u32, type_name: &str) -> Result<Projection> {
        let column = Column { name: "c".to_owned(), base: BaseType::scalar(type_oid, -1) };
        project(&column, TargetColumn { name: "c", type_name, is_null_companion: None })
    }

    #[test]
    fn wrappers_do_not_hide_the_type() {
        for (name, base) in [
            ("Nullable(Int32)", "Int32"),
            ("LowCardinality(Nullable(String))", "String"),
            ("Array(Nullable(String))", "Array(Nullable(String))"),
            ("DateTime64(6, 'UTC')", "DateTime64(6, 'UTC')"),
        ] {
            assert_eq!(base_type(name), base);
        }
    }

    #[test]
    fn types_that_cannot_be_compared_are_named() {
        for (oid, name) in
            [(oid::FLOAT8, "Float32"), (oid::INT4, "Float64"), (oid::TEXT, "Int32"), (oid::UUID, "Date")]
        {
            let error = projected(oid, name).expect_err("must refuse").to_string();
            assert!(error.contains("column c") && error.contains(name), "{error}");
        }
        assert!(projected(oid::INT8, "Nullable(Int64)").is_ok());
        assert!(projected(oid::INT8, "UInt256").is_ok());
    }
}
