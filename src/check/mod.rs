//! The preflight: what a pipeline file would do to two servers, and everything that hinders it. Changes nothing.
//!
//! ```text
//!  file ──> wanted tables ─┐
//!  source ── read ── facts ┼─> judge (pure) ─> findings ─> report: text, JSON, the SQL that mends
//!  target ── read ── facts ┘
//! ```
//!
//! Where the pipe refuses something itself, the check asks the pipe's own judgement, so that both use the same words. It
//! differs in two ways: it tells all that is wrong, and it asks for what bites only later (rights, settings, other
//! people's publications). Its session on the source is read only; on ClickHouse it only selects and asks for grants.
//!
//! | module | what |
//! |---|---|
//! | [`facts`] | what the servers were found to be |
//! | [`source`], [`target`] | reading them |
//! | [`judge`] | facts in, findings out (pure) |
//! | [`finding`] | one thing to say |
//! | [`report`] | all of it, for people and for programs (pure) |

pub mod facts;
pub mod finding;
pub mod judge;
pub mod report;
pub mod source;
pub mod target;

pub use finding::{Finding, Severity, Side};
pub use report::CheckReport;

use self::{
    facts::{SourceFacts, Wanted},
    judge::Plan,
};
use crate::{
    change::Table,
    config::{Pipeline, ProbeKind, TableName, Workload},
    failure::{Failure, Kind},
    load::simple_update,
};

/// Reads both servers and judges. A server that cannot be reached is a finding; the other one is read all the same.
pub async fn check(pipeline: &Pipeline) -> CheckReport {
    let (plan, wanted) = (Plan::new(pipeline), wanted_tables(pipeline));
    let mut unread = Vec::new();
    let source = match &pipeline.source {
        Some(endpoint) => told(Side::Source, source::read(endpoint, pipeline, &wanted).await, &mut unread),
        None => None,
    };
    let target = match &pipeline.target {
        Some(endpoint) => {
            let read = target::read(endpoint, &plan.slot, &followed(source.as_ref())).await;
            told(Side::Target, read, &mut unread)
        }
        None => None,
    };
    unread.extend(file_findings(pipeline, &wanted));
    unread.extend(judge::judge(&plan, source.as_ref(), target.as_ref()));
    report::report(pipeline, &plan, &wanted, source.as_ref(), target.as_ref(), unread)
}

/// The tables of the file: `source.tables`, then those that its probes make.
pub fn wanted_tables(pipeline: &Pipeline) -> Vec<Wanted> {
    let listed = pipeline.tables.iter().map(|name| Wanted { name: name.clone(), by_probe: false });
    let mut wanted: Vec<Wanted> = listed.collect();
    for probe in &pipeline.probes {
        let names = match &probe.kind {
            ProbeKind::Backfill(backfill) => vec![backfill.table.clone()],
            ProbeKind::Drain(drain) => match &drain.load.workload {
                Workload::InsertBatch { table, .. } => vec![table.clone()],
                Workload::SimpleUpdate { .. } => simple_update::TABLES
                    .iter()
                    .map(|name| TableName::new(simple_update::SCHEMA, *name))
                    .collect(),
            },
        };
        for name in names {
            if !wanted.iter().any(|known| known.by_probe && known.name == name) {
                wanted.push(Wanted { name, by_probe: true });
            }
        }
    }
    wanted
}

fn followed(source: Option<&SourceFacts>) -> Vec<&Table> {
    let tables = source.into_iter().flat_map(|source| &source.tables);
    let followed = tables.filter(|table| !table.wanted.by_probe);
    followed.filter_map(|table| Some(&table.inspected.table.as_ref()?.table)).collect()
}

/// What was read, or the reason why not as a finding.
fn told<T>(side: Side, read: anyhow::Result<T>, findings: &mut Vec<Finding>) -> Option<T> {
    match read {
        Ok(facts) => Some(facts),
        Err(error) => {
            let failure = Failure::find(&error).cloned();
            let failure = failure.unwrap_or_else(|| {
                Failure::environment(format!("{error:#}")).hint("the server's log may say why")
            });
            let subject = if side == Side::Source { "source.url" } else { "target.url" };
            findings.push(Finding::refused(side, subject, failure));
            None
        }
    }
}

fn file_findings(pipeline: &Pipeline, wanted: &[Wanted]) -> Vec<Finding> {
    let mut found = Vec::new();
    if wanted.is_empty() {
        let failure = Failure::config("the file names no table: neither source.tables nor a [[probe]]")
            .hint("tables = [\"public.my_table\"] under [source]");
        found.push(Finding::refused(Side::File, "source.tables", failure));
    }
    if pipeline.lab.is_some() {
        let message = "the file starts a lab of its own, with servers set up as a pipe needs them; none was started for \
                       this check, so only the file was looked at";
        found.push(Finding::note(Side::File, "[lab]", message));
        for wanted in wanted.iter().filter(|wanted| !wanted.by_probe) {
            let failure = Failure::config(format!(
                "table {} cannot be in a lab that is yet to be started",
                wanted.name
            ))
            .hint("name the servers that have it: --set source.url=… --set target.url=…");
            found.push(Finding::refused(Side::File, wanted.name.to_string(), failure));
        }
    }
    found
}

/// The kind that decides the exit code: of the errors the one with the highest code.
pub fn gravest(findings: &[Finding]) -> Option<Kind> {
    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error);
    errors.map(|finding| finding.kind).max_by_key(|kind| kind.code())
}

#[cfg(test)]
mod tests;
