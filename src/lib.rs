//! cdcprobe: a Postgres-to-ClickHouse change-data-capture pipe, and the instrument that measures it.

pub mod analyze;
pub mod change;
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
