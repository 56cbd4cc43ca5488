//! What to measure, validated.

use std::{collections::BTreeMap, time::Duration};

use super::pipeline::TableName;

/// One `[[probe]]`.
#[derive(Clone, Debug)]
pub struct Probe {
    pub kind: ProbeKind,
    pub repeat: u32,
    /// By metric name; held against the median.
    pub expect: BTreeMap<String, Bounds>,
}

impl Probe {
    /// `backfill` or `drain`: the name in files and reports.
    pub fn name(&self) -> &'static str {
        match self.kind {
            ProbeKind::Backfill(_) => "backfill",
            ProbeKind::Drain(_) => "drain",
        }
    }
}

#[derive(Clone, Debug)]
pub enum ProbeKind {
    Backfill(BackfillProbe),
    Drain(DrainProbe),
}

#[derive(Clone, Debug)]
pub struct BackfillProbe {
    pub table: TableName,
    pub rows: u64,
    pub payload_bytes: u32,
    /// Worker counts, interleaved over the repeats.
    pub workers: Vec<u32>,
}

#[derive(Clone, Debug)]
pub struct DrainProbe {
    pub load: LoadPlan,
    /// At the end of the load the pipe is held back for this long.
    pub hold: Duration,
    pub decode_only: bool,
}

/// Inclusive bounds on a metric's median.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bounds {
    pub min: Option<f64>,
    pub max: Option<f64>,
}

/// What is written to the source, by how many, for how long.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    pub workload: Workload,
    pub clients: u32,
    pub duration: Duration,
    /// Statements per second over all clients; `None`: closed loop.
    pub rate_per_s: Option<f64>,
    pub seed: u64,
}

#[derive(Clone, Debug)]
pub enum Workload {
    /// Multi-row INSERTs into a table of the shape of `cdc_probe`.
    InsertBatch { table: TableName, rows_per_statement: u32, payload_bytes: u32 },
    /// pgbench's `simple-update` transaction on pgbench's tables.
    SimpleUpdate { scale: u32 },
}
