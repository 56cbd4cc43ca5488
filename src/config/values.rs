//! What becomes of values that ClickHouse's types cannot hold: the section `[values]`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{TableName, pipeline::name_part};
use crate::failure::Failure;

/// One policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ValuePolicy {
    /// The pipe stops and names column and value.
    #[default]
    Fail,
    /// NULL, counted. The target's column becomes nullable; a key's column cannot.
    Null,
    /// The nearest value that fits, counted. For dates and timestamps.
    Clamp,
    /// The whole column becomes a String of PostgreSQL's text, so that every value has a place.
    String,
}

/// The section as TOML holds it: one default per kind of value, and columns of their own.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawValues {
    /// Infinities, and years outside 1 to 9999.
    pub date: ValuePolicy,
    /// Infinities, and years outside 0 to 9999; with and without time zone.
    pub timestamp: ValuePolicy,
    /// NaN and infinities in a `numeric(p, s)`.
    pub numeric: ValuePolicy,
    /// Arrays of several dimensions, or with lower bounds other than 1.
    pub array: ValuePolicy,
    /// `"schema.table.column" = "null"`, quoted as in SQL where needed.
    pub columns: BTreeMap<String, ValuePolicy>,
}

/// The section, checked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ValuePolicies {
    pub date: ValuePolicy,
    pub timestamp: ValuePolicy,
    pub numeric: ValuePolicy,
    pub array: ValuePolicy,
    pub columns: BTreeMap<(TableName, String), ValuePolicy>,
}

impl RawValues {
    pub fn resolve(&self) -> anyhow::Result<ValuePolicies> {
        for (kind, policy) in [("numeric", self.numeric), ("array", self.array)] {
            if policy == ValuePolicy::Clamp {
                return Err(Failure::config(format!(
                    "values.{kind} cannot be \"clamp\": nothing is nearest"
                ))
                .hint("null, fail or string")
                .into());
            }
        }
        let columns = self.columns.iter().map(|(name, policy)| Ok((column_name(name)?, *policy)));
        Ok(ValuePolicies {
            date: self.date,
            timestamp: self.timestamp,
            numeric: self.numeric,
            array: self.array,
            columns: columns.collect::<Result<_, Failure>>()?,
        })
    }
}

/// `schema.table.column`, or `table.column` of schema public.
fn column_name(text: &str) -> Result<(TableName, String), Failure> {
    let bad = || {
        Failure::config(format!("values.columns: {text:?} is no column name"))
            .hint("write schema.table.column; double-quote parts with dots, spaces or capitals, as in SQL")
    };
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        let (part, after) = name_part(rest).ok_or_else(bad)?;
        parts.push(part);
        match after.strip_prefix('.') {
            Some(next) => rest = next,
            None if after.is_empty() => break,
            None => return Err(bad()),
        }
    }
    match <[String; 3]>::try_from(parts) {
        Ok([schema, table, column]) => Ok((TableName::new(schema, table), column)),
        Err(parts) => match <[String; 2]>::try_from(parts) {
            Ok([table, column]) => Ok((TableName::new("public", table), column)),
            Err(_) => Err(bad()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_named_as_in_sql() {
        for (text, schema, table, column) in [
            ("app.T.C", "app", "t", "c"),
            ("t.c", "public", "t", "c"),
            (r#"app."my.T"."a b""#, "app", "my.T", "a b"),
        ] {
            assert_eq!(column_name(text).unwrap(), (TableName::new(schema, table), column.to_owned()));
        }
        for bad in ["", "c", "a.b.c.d", "a..c", r#"a."b"#] {
            assert!(column_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_what_has_a_nearest_value_can_be_clamped() {
        let raw = RawValues { date: ValuePolicy::Clamp, ..RawValues::default() };
        assert!(raw.resolve().is_ok());
        let raw = RawValues { numeric: ValuePolicy::Clamp, ..RawValues::default() };
        assert!(raw.resolve().unwrap_err().to_string().contains("values.numeric"));
    }
}
