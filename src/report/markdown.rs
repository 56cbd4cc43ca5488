//! `report.md`: question, verdict, figures, checks, what limits them, evidence.

use std::{collections::BTreeMap, fmt::Write};

use serde_json::Value;

use super::{by_probe, format, place, table::Table, terminal::metrics_table, verdict};
use crate::record::{
    Check, Expectation, Outcome, RunData,
    phase::{PhaseSpan, spans},
};

pub fn markdown(run: &RunData) -> String {
    let mut out = format!("# {}\n\n", run.manifest.pipeline);
    if !run.manifest.description.is_empty() {
        let _ = writeln!(out, "{}\n", run.manifest.description);
    }
    let _ = writeln!(out, "**{}**\n", verdict(run));
    if let Some(outcome) = &run.outcome {
        push_outcome(&mut out, outcome);
    }
    push_notes(&mut out, run);
    push_phases(&mut out, run);
    push_evidence(&mut out, run);
    out
}

fn push_outcome(out: &mut String, outcome: &Outcome) {
    for (probe, metrics) in by_probe(outcome) {
        let _ = writeln!(out, "## Results: {probe}\n\n{}", metrics_table(&metrics).markdown());
    }
    push_list(out, "What limits it", &outcome.limits);
    push_table(out, "Expectations", &expectations(outcome));
    push_table(out, "Checks", &checks(outcome));
    push_list(out, "Warnings", &outcome.warnings);
}

fn push_list(out: &mut String, title: &str, lines: &[String]) {
    if !lines.is_empty() {
        let items: String = lines.iter().map(|line| format!("- {}\n", line.replace('\n', " "))).collect();
        let _ = writeln!(out, "## {title}\n\n{items}");
    }
}

fn push_table(out: &mut String, title: &str, table: &Table) {
    if !table.is_empty() {
        let _ = writeln!(out, "## {title}\n\n{}", table.markdown());
    }
}

fn expectations(outcome: &Outcome) -> Table {
    let mut table = Table::new(&["result", "expectation"]);
    for e in &outcome.expectations {
        table.row([e.result.to_string(), expectation(e)]);
    }
    table
}

/// `drain_rows_per_s 41,000 at least 40,000 (median of 3, interval …)`.
pub(super) fn expectation(e: &Expectation) -> String {
    let place = place(&e.point);
    let at = if place.is_empty() { String::new() } else { format!(" ({place})") };
    let observed = e.observed.map_or_else(|| "missing".to_owned(), format::number);
    let min = e.min.map(|min| format!(" at least {}", format::number(min))).unwrap_or_default();
    let max = e.max.map(|max| format!(" at most {}", format::number(max))).unwrap_or_default();
    format!("{}{at} is {observed}, wanted{min}{max} ({})", e.metric, e.detail)
}

fn checks(outcome: &Outcome) -> Table {
    let mut table = Table::new(&["result", "check", "of", ">expected", ">observed", ">tolerance", "detail"]);
    let show = |value: Option<f64>| value.map_or_else(String::new, format::number);
    for check in &outcome.checks {
        table.row([
            check.status.to_string(),
            check.name.clone(),
            check.scope.clone(),
            show(check.expected),
            show(check.observed),
            show(check.tolerance),
            check.detail.clone(),
        ]);
    }
    table
}

/// A check's numbers and words in one line.
pub(super) fn check_detail(check: &Check) -> String {
    match (check.expected, check.observed, check.tolerance) {
        (Some(expected), Some(observed), Some(tolerance)) => format!(
            "{} expected, {} observed, ± {} ({})",
            format::number(expected),
            format::number(observed),
            format::number(tolerance),
            check.detail
        ),
        _ => check.detail.clone(),
    }
}

/// What was odd about the files: in the outcome's warnings already where there is one.
fn push_notes(out: &mut String, run: &RunData) {
    if run.outcome.is_none() {
        push_list(out, "Notes", &run.notes);
    }
}

fn push_phases(out: &mut String, run: &RunData) {
    let mut table = Table::new(&["probe", "at", ">repeat", "phase", ">began at", ">took"]);
    for span in spans(&run.phases) {
        table.row(phase_row(&span));
    }
    push_table(out, "Phases", &table);
}

fn phase_row(span: &PhaseSpan) -> [String; 6] {
    let seconds = |us: u64| us as f64 / 1e6;
    [
        span.point.get("probe").cloned().unwrap_or_default(),
        place(&span.point),
        span.run.to_string(),
        span.phase.clone(),
        format::seconds(seconds(span.start_us)),
        span.end_us.map_or_else(
            || "did not end".to_owned(),
            |end_us| format::seconds(seconds(end_us.saturating_sub(span.start_us))),
        ),
    ]
}

fn push_evidence(out: &mut String, run: &RunData) {
    let mut table = Table::new(&["what", "value"]);
    for (what, value) in facts(run) {
        table.row([what, value]);
    }
    push_table(out, "Evidence", &table);
    let config = serde_json::to_string_pretty(&run.manifest.config).unwrap_or_default();
    let _ = writeln!(out, "## Pipeline as resolved\n\n```json\n{config}\n```");
}

fn facts(run: &RunData) -> Vec<(String, String)> {
    let manifest = &run.manifest;
    let build = if manifest.tool.optimised { "" } else { ", a debug build" };
    let mut facts = vec![
        ("run".to_owned(), run.id()),
        ("started".to_owned(), started(manifest.clock.unix_us(0))),
        (
            "tool".to_owned(),
            format!(
                "{} {}, commit {}{build}",
                manifest.tool.name, manifest.tool.version, manifest.tool.commit
            ),
        ),
        ("topology".to_owned(), manifest.topology.clone()),
        ("host".to_owned(), host(run)),
    ];
    facts.extend(manifest.host.cgroup.iter().map(|(k, v)| (format!("cgroup {k}"), v.clone())));
    facts.extend(manifest.server_versions.iter().map(|(k, v)| (format!("{k} version"), v.clone())));
    facts.extend(flat(&manifest.evidence));
    facts
}

fn started(unix_us: i64) -> String {
    jiff::Timestamp::from_microsecond(unix_us)
        .map_or_else(|_| "unknown".to_owned(), |time| time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string())
}

fn host(run: &RunData) -> String {
    let host = &run.manifest.host;
    let memory = format::quantity(host.memory_bytes as f64, "bytes");
    format!("{}, {} cores, {memory}, {}, kernel {}", host.name, host.cores, host.cpu, host.kernel)
}

/// Nested evidence as `postgres settings wal_level`: leaves only.
fn flat(evidence: &BTreeMap<String, Value>) -> Vec<(String, String)> {
    let mut leaves = Vec::new();
    for (name, value) in evidence {
        push_leaves(name, value, &mut leaves);
    }
    leaves
}

fn push_leaves(name: &str, value: &Value, leaves: &mut Vec<(String, String)>) {
    match value {
        Value::Object(map) => {
            map.iter().for_each(|(key, v)| push_leaves(&format!("{name} {key}"), v, leaves))
        }
        Value::String(text) => leaves.push((name.to_owned(), text.clone())),
        other => leaves.push((name.to_owned(), other.to_string())),
    }
}
