//! A run directory as people read it: a table on the terminal, Markdown, and what goes by while a run is under way.
//!
//! A report is a pure function of the directory as read back: made again years later it comes out the same.

mod format;
pub mod live;
mod markdown;
mod table;
mod terminal;

pub use live::Live;
pub use markdown::markdown;
pub use terminal::{terminal, wants_colour};

use std::{io::Write, path::Path};

use anyhow::{Context, Result};

use crate::{
    metric::Point,
    record::{MetricSummary, Outcome, RunData, RunDir, Status, run_dir},
};

/// Prints the results on standard output; as JSON the outcome alone.
pub fn print(run: &RunData, json: bool) -> Result<()> {
    let text = match json {
        true => serde_json::to_string_pretty(&run.outcome).context("serialise the outcome")? + "\n",
        false => terminal(run, wants_colour()),
    };
    std::io::stdout().lock().write_all(text.as_bytes()).context("print the results")
}

/// Makes `report.md` in a run directory anew; returns the directory as read.
pub fn write(dir: &Path) -> Result<RunData> {
    let run = RunDir::open(dir)?;
    run_dir::write_report(&run.path, &markdown(&run))?;
    Ok(run)
}

/// The verdict, or why there is none.
fn verdict(run: &RunData) -> String {
    let ended = match run.manifest.status {
        Status::Running => "The run is still going on, or was killed",
        Status::Interrupted => "The run was interrupted",
        Status::Failed => "The run failed",
        Status::Finished => "The run has finished",
    };
    let said = run.outcome.as_ref().map(|outcome| outcome.verdict.clone()).filter(|text| !text.is_empty());
    let error = run.manifest.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    match (run.manifest.status, said) {
        (Status::Finished, Some(verdict)) => verdict,
        (_, Some(verdict)) => format!("{ended}{error}. So far: {verdict}"),
        (_, None) => format!("{ended}{error}. It has no outcome."),
    }
}

/// Probes in the order in which their metrics come, each with its metrics. Metrics of no probe come under "".
fn by_probe(outcome: &Outcome) -> Vec<(&str, Vec<&MetricSummary>)> {
    let mut probes: Vec<(&str, Vec<&MetricSummary>)> = Vec::new();
    for metric in &outcome.metrics {
        let probe = metric.point.get("probe").map_or("", String::as_str);
        match probes.iter_mut().find(|(name, _)| *name == probe) {
            Some((_, metrics)) => metrics.push(metric),
            None => probes.push((probe, vec![metric])),
        }
    }
    probes
}

/// `process pipe, workers 4`: a point without its probe.
fn place(point: &Point) -> String {
    let labels = point.iter().filter(|(key, _)| *key != "probe");
    labels.map(|(key, value)| format!("{key} {value}")).collect::<Vec<_>>().join(", ")
}
