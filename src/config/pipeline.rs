//! A validated pipeline: what the rest of the program sees of a file.

use std::{fmt, path::PathBuf, time::Duration};

use serde::{Serialize, Serializer};

use super::{Probe, SourceEndpoint, TargetEndpoint};
use crate::units::ByteSize;

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
    pub tables: Vec<TableName>,
    pub publication: String,
    pub slot: String,
    pub snapshot_workers: u32,
    pub batch: BatchLimits,
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
