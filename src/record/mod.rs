//! The run directory: everything a run saw, written as it happens, so that every figure can be derived again later.
//!
//! ```text
//! runs/<utc>-<pipeline>-<4 hex>/
//!   manifest.json   what ran where, on what, with which settings        Manifest
//!   phases.jsonl    when each phase began and ended                     PhaseMark
//!   samples.jsonl   what each meter read                                metric::Sample
//!   latency.hlog    latencies, HDR interval log                         LatencyInterval
//!   outcome.json    metrics, checks, verdict                            Outcome
//! ```
//!
//! Raw readings go in, derived figures stay out (but for `outcome.json`, which `analyze` makes from the rest). Every
//! line is written with one system call when it exists: a run that is killed keeps all but its last line, and the
//! reader ([`RunDir::open`]) drops a torn last line and says so. One monotonic clock ([`RunClock`]) times everything.

pub mod clock;
pub mod histogram;
pub mod live;
pub mod manifest;
pub mod outcome;
pub mod phase;
pub mod read;
pub mod run_dir;
pub mod sampler;

#[cfg(test)]
mod tests;

pub use clock::{Anchor, RunClock};
pub use histogram::LatencyInterval;
pub use manifest::{Manifest, Status};
pub use outcome::{Check, CheckStatus, Expectation, MetricSummary, Outcome};
pub use phase::{Edge, OpenPhase, PhaseMark};
pub use read::RunData;
pub use run_dir::RunDir;
