//! The pipeline file as TOML holds it: every key, its unit, its default and why.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::values::RawValues;
use crate::units::{ByteSize, Span};

/// The whole file. All sections but `[source]`'s tables may be left out.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RawPipeline {
    /// The question that the file answers, in a sentence.
    #[serde(default)]
    pub description: String,
    /// Start real servers for this run. Ignored when both URLs are given.
    pub lab: Option<RawLab>,
    #[serde(default)]
    pub source: RawSource,
    #[serde(default)]
    pub target: RawTarget,
    #[serde(default)]
    pub snapshot: RawSnapshot,
    #[serde(default)]
    pub batch: RawBatch,
    #[serde(default)]
    pub transactions: RawTransactions,
    #[serde(default)]
    pub values: RawValues,
    #[serde(default)]
    pub probe: Vec<RawProbe>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RawLab {
    /// `cdc`: one PostgreSQL, one ClickHouse.
    #[serde(default = "default_topology")]
    pub topology: String,
    /// Folder with `postgres`, `initdb`, …; default: PATH, then the lab's cache.
    pub pg_bin: Option<PathBuf>,
    /// A `clickhouse` binary; default: PATH, then libchdb from the lab's cache.
    pub clickhouse: Option<PathBuf>,
}

fn default_topology() -> String {
    "cdc".to_owned()
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RawSource {
    /// `postgres://user@host:port/db?sslmode=…`, a key=value string, or empty for PG* variables; a lab fills it in.
    pub url: Option<String>,
    /// `schema.table`, quoted as in SQL where needed. Empty: the probes' own tables.
    #[serde(default)]
    pub tables: Vec<String>,
    /// Default `cdcprobe`. Created when it is missing.
    pub publication: Option<String>,
    /// Default `cdcprobe`. Created with the snapshot when it is missing.
    pub slot: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RawTarget {
    /// `clickhouse` (default) or `null`: decode, count, throw away.
    pub kind: Option<String>,
    /// `http://user@host:8123`; a lab fills it in. Passwords: see docs/connections.md.
    pub url: Option<String>,
    /// Default `cdcprobe`. Created when it is missing.
    pub database: Option<String>,
    /// LZ4 on the way to ClickHouse: worth it where the link is slower than the CPU. Default false.
    pub compression: Option<bool>,
    /// Every insert's deadline. Default 60 s.
    pub timeout: Option<Span>,
    /// A view `<table>_current` beside each table that we make: its rows as they are now. Default true: people query views.
    pub views: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RawSnapshot {
    /// Tables' ctid ranges copied at once. Default 4: two cores are busy with it, four still gain on larger machines.
    pub workers: Option<u32>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RawBatch {
    /// A block is sent when its columns hold this much. Default 32 MiB.
    pub max_bytes: Option<ByteSize>,
    /// … or this many rows. Default 100,000: smaller blocks cost ClickHouse three times as much per row.
    pub max_rows: Option<u32>,
    /// … or when its first row is this old. Default 1 s.
    pub max_wait: Option<Span>,
    /// A block younger than this is not sent even when the source is quiet. Default 50 ms.
    pub min_wait: Option<Span>,
    /// Inserts under way at once, acknowledged in order. Default 2.
    pub in_flight: Option<u32>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RawTransactions {
    /// Large transactions are sent while they still run (PostgreSQL 14): the server need not keep them on its own disk
    /// until they commit; we keep them on ours. Default true.
    pub streaming: Option<bool>,
    /// Transactions are sent when they are prepared (`PREPARE TRANSACTION`, PostgreSQL 15), so that little is left to do
    /// once they commit. While one is prepared the slot does not move past it. Default false.
    pub two_phase: Option<bool>,
    /// Folder for changes of large transactions that have not committed yet. Default: the system's temporary folder.
    pub spill_folder: Option<PathBuf>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RawProbe {
    /// `backfill` or `drain`.
    pub kind: String,
    /// Repeats of the whole probe. Default 3.
    pub repeat: Option<u32>,
    /// backfill: the table to fill and load. Default `public.cdc_backfill`.
    pub table: Option<String>,
    /// backfill: rows to fill it with. Default 2,000,000.
    pub rows: Option<u64>,
    /// backfill: bytes of text in each row's payload. Default 200.
    pub payload_bytes: Option<u32>,
    /// backfill: worker counts to try. Default: `snapshot.workers` alone.
    pub workers: Option<Vec<u32>>,
    /// drain: what is written.
    pub load: Option<RawLoad>,
    /// drain: hold the pipe back for this long at the end of the load, so that there is a backlog to drain even where the
    /// pipe keeps up with the writers. Default: half of the load's duration; "0s": never.
    pub hold: Option<Span>,
    /// drain: also drain a second slot into nothing, the ceiling. Default true.
    pub decode_only: Option<bool>,
    /// Bounds on the outcome's medians: `{ drain_rows_per_s = { min = 40_000 } }`.
    #[serde(default)]
    pub expect: BTreeMap<String, RawBounds>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RawBounds {
    pub min: Option<f64>,
    pub max: Option<f64>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RawLoad {
    /// `insert-batch` or `simple-update`.
    pub workload: String,
    /// Connections that write. Default 8.
    pub clients: Option<u32>,
    /// How long. Default 20 s.
    pub duration: Option<Span>,
    /// Statements per second over all clients (open loop). Default: as fast as they go (closed loop).
    pub rate: Option<f64>,
    /// insert-batch: default `public.cdc_probe`.
    pub table: Option<String>,
    /// insert-batch: rows of one INSERT. Default 100.
    pub rows_per_statement: Option<u32>,
    /// insert-batch: bytes of text in each row. Default 200.
    pub payload_bytes: Option<u32>,
    /// simple-update: pgbench scale (100,000 accounts each). Default 10.
    pub scale: Option<u32>,
    /// Seed of everything random in the load. Default 1.
    pub seed: Option<u64>,
}
