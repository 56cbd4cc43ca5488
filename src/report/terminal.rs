//! The report on a terminal: aligned text, complete without colour; colour only marks what passed and what did not.

use std::{fmt::Write, io::IsTerminal};

use super::{by_probe, format, place, table::Table, verdict};
use crate::record::{
    CheckStatus, MetricSummary, Outcome, RunData,
    outcome::{Exit, ExpectationResult},
};

const GREEN: &str = "32";
const RED: &str = "31";
const YELLOW: &str = "33";
const BOLD: &str = "1";

/// Standard output is a terminal and nobody asked for none (`NO_COLOR`, `TERM=dumb`).
pub fn wants_colour() -> bool {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    std::io::stdout().is_terminal()
        && set("NO_COLOR").is_none()
        && set("TERM").is_none_or(|term| term != "dumb")
}

/// Metrics by probe, what limits them, expectations, checks, warnings, verdict last: it is what the eye finds first.
pub fn terminal(run: &RunData, colour: bool) -> String {
    let paint = Paint(colour);
    let mut out = format!("{}\n", paint.with(BOLD, &run.manifest.pipeline));
    if !run.manifest.description.is_empty() {
        let _ = writeln!(out, "{}", run.manifest.description);
    }
    if let Some(outcome) = &run.outcome {
        push_outcome(&mut out, outcome, paint);
    }
    let _ = writeln!(out, "\n{}", paint.with(verdict_colour(run.outcome.as_ref()), &verdict(run)));
    out
}

#[derive(Clone, Copy)]
struct Paint(bool);

impl Paint {
    fn with(self, code: &str, text: &str) -> String {
        if self.0 { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

fn verdict_colour(outcome: Option<&Outcome>) -> &'static str {
    match outcome.map(|outcome| outcome.exit) {
        Some(Exit::Ok) => GREEN,
        Some(Exit::Expectation | Exit::Invariant) => RED,
        _ => YELLOW,
    }
}

fn push_outcome(out: &mut String, outcome: &Outcome, paint: Paint) {
    for (probe, metrics) in by_probe(outcome) {
        let _ = write!(out, "\n{}\n{}", paint.with(BOLD, probe), metrics_table(&metrics).text("  "));
    }
    push_list(out, paint, "what limits it", outcome.limits.iter().cloned());
    let met = |e: &crate::record::Expectation| {
        let (mark, colour) = match e.result {
            ExpectationResult::Met => ("met", GREEN),
            ExpectationResult::Failed => ("failed", RED),
            ExpectationResult::Inconclusive => ("inconclusive", YELLOW),
        };
        format!("{}  {}", paint.with(colour, &format!("{mark:<12}")), super::markdown::expectation(e))
    };
    push_list(out, paint, "expectations", outcome.expectations.iter().map(met));
    push_list(out, paint, "checks", check_lines(outcome, paint).into_iter());
    push_list(out, paint, "warnings", outcome.warnings.iter().map(|text| paint.with(YELLOW, text)));
}

/// One line a check that agrees with itself in all repeats; each failed one in full.
fn check_lines(outcome: &Outcome, paint: Paint) -> Vec<String> {
    let mut names: Vec<&str> = Vec::new();
    for check in &outcome.checks {
        if !names.contains(&check.name.as_str()) {
            names.push(&check.name);
        }
    }
    names.into_iter().flat_map(|name| lines_of_check(outcome, name, paint)).collect()
}

fn lines_of_check(outcome: &Outcome, name: &str, paint: Paint) -> Vec<String> {
    let of = |status| outcome.checks.iter().filter(move |c| c.name == name && c.status == status);
    let status = |status: CheckStatus, code| paint.with(code, &format!("{status:<14}"));
    let mut lines = Vec::new();
    if let Some(passed) = Some(of(CheckStatus::Passed).count()).filter(|count| *count > 0) {
        lines.push(format!("{}  {name}, {passed} x", status(CheckStatus::Passed, GREEN)));
    }
    if let Some(check) = of(CheckStatus::NotApplicable).next() {
        lines.push(format!("{}  {name}: {}", status(CheckStatus::NotApplicable, "0"), check.detail));
    }
    lines.extend(of(CheckStatus::Failed).map(|check| {
        let detail = super::markdown::check_detail(check);
        format!("{}  {name}: {detail} ({})", status(CheckStatus::Failed, RED), check.scope)
    }));
    lines
}

fn push_list(out: &mut String, paint: Paint, title: &str, lines: impl Iterator<Item = String>) {
    for (at, line) in lines.enumerate() {
        if at == 0 {
            let _ = writeln!(out, "\n{}", paint.with(BOLD, title));
        }
        let _ = writeln!(out, "  {line}");
    }
}

/// Metrics of one probe.
pub(super) fn metrics_table(metrics: &[&MetricSummary]) -> Table {
    let mut table = Table::new(&["metric", "at", ">n", ">min", ">median", ">max", ">interval", "unit"]);
    for metric in metrics {
        let show = |value: f64| format::quantity(value, &metric.unit);
        table.row([
            metric.metric.clone(),
            place(&metric.point),
            metric.n.to_string(),
            show(metric.min),
            show(metric.median),
            show(metric.max),
            metric
                .interval
                .map_or_else(String::new, |(low, high)| format!("{} to {}", show(low), show(high))),
            format::unit(&metric.unit).to_owned(),
        ]);
    }
    table
}
