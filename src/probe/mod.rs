//! Probes: thin compositions of pipe, load, meters and phases. They record what happened; every figure is derived later
//! from the run directory (`analyze`), so a probe holds no arithmetic.

pub mod backfill;
pub mod bench;
pub mod drain;
pub mod evidence;
mod settle;

pub use bench::Bench;

use crate::config::{Probe, ProbeKind};

/// Runs one probe with all its repeats.
pub async fn run(bench: &Bench, probe: &Probe) -> anyhow::Result<()> {
    match &probe.kind {
        ProbeKind::Backfill(backfill) => backfill::run(bench, backfill, probe.repeat).await,
        ProbeKind::Drain(drain) => drain::run(bench, drain, probe.repeat).await,
    }
}
