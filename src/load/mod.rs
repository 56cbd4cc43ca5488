//! Write workloads for the source: tables, statements, clients that send them, and what they saw.
//!
//! | module | what |
//! |---|---|
//! | [`schedule`] | when each statement is meant to be sent (pure) |
//! | [`insert_batch`] | the multi-row INSERT of `cdc_probe` and its ready-made parameters |
//! | [`simple_update`] | pgbench's simple-update transaction and its tables |
//! | [`workload`] | one client's session of either |
//! | [`worker`] | the clients, their threads, the bound in time |
//! | [`outcome`] | live counters, and the result |
//! | [`table`] | tables of our own: made, marked, filled |
//!
//! The clients run on operating-system threads of their own, each with a single-threaded runtime, so that a busy pipe
//! and a busy load never wait for each other's tasks, and so that the load's CPU can be told from the pipe's.

pub mod insert_batch;
pub mod outcome;
pub mod schedule;
pub mod simple_update;
pub mod table;
pub mod worker;
pub mod workload;

pub use outcome::{LoadCounters, LoadResult};
pub use table::{TableState, create_table, drop_table, fill};
pub use worker::{Running, start};
