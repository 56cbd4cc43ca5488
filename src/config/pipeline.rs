//! A validated pipeline: what the rest of the program sees of a file.

use std::{fmt, path::PathBuf, time::Duration};

use serde::{Serialize, Serializer};

use super::{Probe, SourceEndpoint, TargetEndpoint, ValuePolicies};
use crate::{failure::Failure, units::ByteSize};

/// A pipeline file after defaults, environment and `--set`. Endpoints are `None` where a lab must provide them.
#[derive(Clone, Debug)]
pub struct Pipeline {
    /// The file's stem: part of the run directory's name.
    pub name: String,
    pub description: String,
    pub lab: Option<LabPlan>,
    pub source: Option<SourceEndpoint>,
    pub target: Option<TargetEndpoint>,
    pub sink: SinkKind,
    pub database: String,
    pub compression: bool,
    pub timeout: Duration,
    pub views: bool,
    pub tables: Vec<TableName>,
    pub publication: String,
    pub slot: String,
    pub snapshot_workers: u32,
    pub batch: BatchLimits,
    pub transactions: Transactions,
    pub values: ValuePolicies,
    pub probes: Vec<Probe>,
    /// The file as resolved, secrets masked: for the run's manifest.
    pub resolved: serde_json::Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkKind {
    ClickHouse,
    Null,
}

#[derive(Clone, Debug)]
pub struct LabPlan {
    pub topology: String,
    pub pg_bin: Option<PathBuf>,
    pub clickhouse: Option<PathBuf>,
}

/// When a block of rows is sent, and how many may be under way.
#[derive(Clone, Copy, Debug)]
pub struct BatchLimits {
    pub max_bytes: ByteSize,
    pub max_rows: u32,
    pub max_wait: Duration,
    pub min_wait: Duration,
    pub in_flight: u32,
}

/// How transactions come that are large, or prepared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transactions {
    pub streaming: bool,
    pub two_phase: bool,
    /// Where changes wait for their transaction's end when they are too many for memory.
    pub spill_folder: PathBuf,
}

impl Default for Transactions {
    fn default() -> Self {
        Transactions { streaming: true, two_phase: false, spill_folder: std::env::temp_dir() }
    }
}

/// A table by schema and name, unquoted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableName {
    pub schema: String,
    pub name: String,
}

impl TableName {
    pub fn new(schema: impl Into<String>, name: impl Into<String>) -> Self {
        TableName { schema: schema.into(), name: name.into() }
    }
}

/// Reads `schema.table` or `table` (of schema public); double quotes as in SQL keep dots and capitals.
impl std::str::FromStr for TableName {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let bad = || {
            Failure::config(format!("{text:?} is no table name"))
                .hint("write schema.table; double-quote parts with dots, spaces or capitals, as in SQL")
        };
        let (first, rest) = name_part(text).ok_or_else(bad)?;
        let Some(rest) = rest.strip_prefix('.') else {
            return if rest.is_empty() { Ok(TableName::new("public", first)) } else { Err(bad()) };
        };
        match name_part(rest) {
            Some((second, "")) => Ok(TableName::new(first, second)),
            _ => Err(bad()),
        }
    }
}

/// One part of a name and what follows it; unquoted parts are folded to lower case, as SQL does.
pub(super) fn name_part(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(['.', '"']).unwrap_or(text.len());
        return (end > 0).then(|| (text[..end].to_lowercase(), &text[end..]));
    };
    let mut name = String::new();
    let mut rest = quoted;
    loop {
        let end = rest.find('"')?;
        name.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(after) => {
                name.push('"');
                rest = after;
            }
            None => return (!name.is_empty()).then_some((name, rest)),
        }
    }
}

/// `schema.name`, for people; SQL goes through the quoting functions.
impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}

impl Serialize for TableName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_names_read_as_sql_reads_them() {
        for (text, schema, name) in [
            ("t", "public", "t"),
            ("App.T", "app", "t"),
            (r#""App"."my.T""#, "App", "my.T"),
            (r#"s."a"" b""#, "s", "a\" b"),
        ] {
            assert_eq!(text.parse::<TableName>().unwrap(), TableName::new(schema, name));
        }
        for bad in ["", ".", "a.", ".b", "a.b.c", r#""a"#, r#""".b"#, r#"a"b"#] {
            assert!(bad.parse::<TableName>().is_err(), "{bad}");
        }
    }
}
