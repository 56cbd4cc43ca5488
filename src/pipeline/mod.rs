//! The pipe: source, batches, sink, checkpoint.

pub mod counters;

pub use counters::{Arrival, Counters};
