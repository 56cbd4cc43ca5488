//! The initial load: tables cut into ctid ranges, copied by several workers on one exported snapshot.

pub mod plan;
pub mod worker;

pub use plan::{BlockRange, plan};
pub use worker::{RangeError, RangeReader, RangeStep};
