//! Names of what is measured, and single measurements.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Where in a sweep a figure was taken, and of what: `{workers: "4"}`, `{process: "pipe"}`. Empty: the whole probe.
pub type Point = BTreeMap<String, String>;

/// What one reading of a meter holds, by name; each name ends in its unit.
pub type Values = BTreeMap<String, f64>;

/// A point from its labels.
pub fn point<const N: usize>(labels: [(&str, &str); N]) -> Point {
    labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// Which way is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    Higher,
    Lower,
    /// A fact, neither good nor bad.
    Neutral,
}

/// A measured quantity: its name ends in its unit (`drain_rows_per_s`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metric {
    pub name: String,
    pub unit: String,
    pub better: Better,
}

impl Metric {
    pub fn new(name: &str, unit: &str, better: Better) -> Self {
        Metric { name: name.to_owned(), unit: unit.to_owned(), better }
    }
}

/// What one meter read at one instant. `t_us` counts from the run's start on the monotonic clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub t_us: u64,
    pub meter: String,
    pub values: Values,
}

/// Names of the meters that the analysis looks for, and of the values that it takes from their samples: whoever records
/// and whoever analyses have to agree. Counters are cumulative; positions in the WAL are bytes since its beginning
/// (exact up to 2^53). Everything else that a sample holds is kept as evidence.
pub mod meter {
    /// `flush_lsn` (the source's flushed WAL) and `confirmed_lsn` (the slot's), read in one query.
    pub const SLOT: &str = "slot";
    /// The pipe's counters since its start: `received_bytes durable_rows nap_s source_wait_s sink_wait_s durable_lsn
    /// durable_commit_unix_s`.
    pub const PIPE: &str = "pipe";
    /// One sample a block, at the instant at which the target acknowledged it: `rows`, `bytes`.
    pub const ARRIVAL: &str = "arrival";
    /// `process.walsender`, `process.pipe`, `process.clickhouse`: `cpu_s` (user + system, cumulative), `rss_bytes`.
    pub const PROCESS: &str = "process.";
    /// `rows` acknowledged by the source since the phase `load` began, read once more after its end.
    pub const LOAD: &str = "load";
    /// One sample when the load has ended: `clients`, `closed_loop` (1 or 0), `elapsed_s` (first statement sent to
    /// last one answered), `mean_think_s` (from an answer to the client's next send), `saturation` (share of the
    /// clients' threads' time on a CPU), `errors`, `unanswered`, `unsent`.
    pub const LOAD_RESULT: &str = "load_result";
    /// `offset_s`: the source's clock minus ours.
    pub const SOURCE_CLOCK: &str = "source_clock";
    /// One sample at each fence, durable: `lsn`, `written_rows`, `target_rows`, `backlog_rows`, rows since the phase
    /// `load` (or `copy`) began. Written before the repeat's last phase ends.
    pub const FENCE: &str = "fence";
    /// One sample a comparison of source and target: `verified_rows lost_rows extra_rows differing_rows`.
    /// Written before the repeat's last phase ends.
    pub const VERIFY: &str = "verify";
}

/// Names of phases that the analysis looks for. `point["probe"]` names the probe.
pub mod phase {
    /// drain: the writers run.
    pub const LOAD: &str = "load";
    /// drain: from the writers' stop until the fence is durable.
    pub const DRAIN: &str = "drain";
    /// drain: a second slot is read into nothing, the same changes.
    pub const DECODE_ONLY: &str = "decode_only";
    /// backfill: slot, exported snapshot, plan, tables.
    pub const SETUP: &str = "setup";
    /// backfill: from the first COPY until the last block is durable.
    pub const COPY: &str = "copy";
    /// backfill: the same ranges read into nothing.
    pub const COPY_ONLY: &str = "copy_only";
}
