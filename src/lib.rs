//! cdcprobe: a Postgres-to-ClickHouse change-data-capture pipe, and the instrument that measures it.
//!
//! ```text
//!  pipelines/x.toml ─> config ─> lab (or given servers) ─> probe
//!                                                           │ starts
//!    load ──writes──> PostgreSQL ══WAL══> source ─> change ─> sink ─> ClickHouse | null
//!                         │                 └── pipeline (batches, checkpoint) ──┘
//!                         └────────── meter ─> record (run directory) ─> analyze ─> report
//! ```
//!
//! | Module | What it is |
//! | --- | --- |
//! | [`units`] [`metric`] [`failure`] | numbers with units; measured values; errors with remedies and exit codes |
//! | [`config`] | a pipeline file to validated structs |
//! | [`change`] | the row model: relations, tuples, events, borrowed from the receive buffer |
//! | [`postgres`] | PostgreSQL as a server we talk to: sockets, TLS, login, catalog, quoting |
//! | [`source`] | from its stream and its tables to changes |
//! | [`sink`] | where rows go: the trait with its promises, ClickHouse, null |
//! | [`pipeline`] | source to sink: batches, checkpoints, resuming |
//! | [`verify`] | source against target, every row in key order |
//! | [`check`] | what a pipe would do and what hinders it, without doing it |
//! | [`host`] | this machine: processes, CPU, memory, ports |
//! | [`load`] | writers that put work on the source |
//! | [`meter`] | one observable a file, sampled every second |
//! | [`record`] | the run directory: samples, phases, histograms, outcome |
//! | [`analyze`] | from recorded samples to rates, latencies and verdicts |
//! | [`probe`] | one measuring procedure a file |
//! | [`report`] | a run directory for people |
//! | [`lab`] | real servers on this machine, without docker |
//! | [`cli`] | one file per subcommand |
//!
//! Glossary. *Slot*: the server's memory of how far a consumer is. *LSN*: a position in the WAL. *Replica identity*: the
//! columns by which an UPDATE or DELETE names its row. *Snapshot*: the tables as they were when the slot began.
//! *Backlog*: WAL that the slot still holds. *Drain*: working the backlog off. *Fence*: the LSN up to which everything
//! must be durable before a drain counts as done. *Batch*, *block*: rows that go to the target together. *Probe*, *run*,
//! *phase*, *sample*, *outcome*: a procedure, one execution of it, its parts, what was read, what follows.

pub mod analyze;
pub mod change;
pub mod check;
pub mod cli;
pub mod config;
pub mod failure;
pub mod host;
pub mod lab;
pub mod load;
pub mod meter;
pub mod metric;
pub mod pipeline;
pub mod postgres;
pub mod probe;
pub mod record;
pub mod report;
pub mod sink;
pub mod source;
pub mod units;
pub mod verify;
