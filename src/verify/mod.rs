//! Source against target: every row and every column, in key order, streaming.
//!
//! ```text
//! source: COPY (select … order by key) in one exported snapshot ──┐ lines
//!                                                                 ├─> merge ─> equal, lost, extra, differing
//! target: SELECT … FINAL … ORDER BY key FORMAT TabSeparated ──────┘ lines
//! ```
//!
//! Each table is cut into ranges of its first key column ([`ranges`]); workers take the next range as they finish one.
//! Both sides write equal values as equal texts ([`projection`]), so that an equal row is one comparison of memory.
//! Memory is bounded by the chunks under way, whatever the table's size; the target sorts one range at a time.
//!
//! The contract: the target is quiet, and holds all that the source had committed when the comparison began (the
//! caller has waited for a fence). A source that is written to meanwhile does no harm: all reads are of one snapshot.

pub mod catalog;
pub mod compare;
pub mod field;
pub mod lines;
pub mod order;
pub mod projection;
pub mod ranges;
pub mod report;
mod worker;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize},
    },
    time::Instant,
};

use anyhow::{Context, Result};
use tokio::task::JoinSet;

use self::{
    catalog::Plan,
    ranges::Range,
    report::Tally,
    worker::{Job, Reader, target_client},
};
use crate::{
    config::{SourceEndpoint, TableName, TargetEndpoint},
    postgres::{connect::sql_session, quote},
};

pub use report::{Difference, DifferingValue, TableReport, VerifyReport};

/// A source table and where its rows should be.
#[derive(Clone, Debug)]
pub struct TablePair {
    pub source: TableName,
    pub target_database: String,
    pub target_table: String,
}

impl TablePair {
    /// `database.table`, for people.
    pub fn target(&self) -> String {
        format!("{}.{}", self.target_database, self.target_table)
    }
}

/// How to compare.
#[derive(Clone)]
pub struct VerifyOptions {
    /// Ranges under way at once, each a session of the source and a query of the target.
    pub workers: usize,
    /// Examples kept of each kind of difference, per table.
    pub max_examples: usize,
    /// The target's column that marks tombstones; rows where it is not 0 do not count. Tables without it have none.
    pub deleted_column: String,
    /// Hears of the source rows compared so far, over all tables, every few thousand.
    pub progress: Arc<dyn Fn(u64) + Send + Sync>,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        VerifyOptions {
            workers: 4,
            max_examples: 10,
            deleted_column: "_deleted".to_owned(),
            progress: Arc::new(|_| {}),
        }
    }
}

/// Compares every row and column of `pairs`.
///
/// Rows of a table without a key are compared as a whole, each as often as it is there. Differences are findings, not
/// errors. Errors: a server that cannot be read, a target that lacks a table or column or holds it in a type that cannot be compared (each a `Failure` that names it).
pub async fn tables(
    source: &SourceEndpoint,
    target: &TargetEndpoint,
    pairs: &[TablePair],
    options: &VerifyOptions,
) -> Result<VerifyReport> {
    let begun = Instant::now();
    // This session keeps the snapshot open that all workers read.
    let keeper = sql_session(source, "cdcprobe verify").await?;
    keeper.batch_execute(worker::BEGIN).await.context("begin the comparison's transaction")?;
    let snapshot: String = keeper.query_one("select pg_export_snapshot()", &[]).await?.try_get(0)?;
    let target_client = target_client(target);
    let mut jobs = Vec::new();
    for (index, pair) in pairs.iter().enumerate() {
        let plan = Plan::of(&keeper, &target_client, pair, &options.deleted_column).await?;
        let ranges = match &plan.whole_row {
            Some(_) => vec![Range::default()],
            None => {
                let first = &plan.projections[plan.layout.key[0].0];
                ranges::plan(&keeper, &quote::qualified(&pair.source), first, options.workers).await?
            }
        };
        let plan = Arc::new(plan);
        let job = |range| Job { table: index, pair: pair.clone(), plan: plan.clone(), range };
        jobs.extend(ranges.into_iter().map(job));
    }
    let tallies = run(source, target, &snapshot, Arc::new(jobs), options).await?;
    let mut report = VerifyReport { tables: pairs.iter().map(empty_report).collect(), ..Default::default() };
    let mut by_table = vec![Tally::default(); pairs.len()];
    for (table, tally) in tallies {
        by_table[table].add(tally, options.max_examples);
    }
    for (table, tally) in report.tables.iter_mut().zip(by_table) {
        table.verified_rows = tally.verified;
        table.lost_rows = tally.lost;
        table.extra_rows = tally.extra;
        table.differing_rows = tally.differing;
        table.examples = tally.examples;
    }
    report.elapsed = begun.elapsed();
    Ok(report)
}

fn empty_report(pair: &TablePair) -> TableReport {
    TableReport {
        source: pair.source.clone(),
        target: pair.target(),
        verified_rows: 0,
        lost_rows: 0,
        extra_rows: 0,
        differing_rows: 0,
        examples: Vec::new(),
    }
}

/// All jobs, by as many workers as asked for; tallies with their tables, in the order of the jobs.
async fn run(
    source: &SourceEndpoint,
    target: &TargetEndpoint,
    snapshot: &str,
    jobs: Arc<Vec<Job>>,
    options: &VerifyOptions,
) -> Result<Vec<(usize, Tally)>> {
    let (next, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
    let mut workers = JoinSet::new();
    for _ in 0..options.workers.max(1).min(jobs.len()) {
        let reader = Reader::connect(source, target, snapshot, options, done.clone()).await?;
        workers.spawn(worker::run(reader, jobs.clone(), next.clone()));
    }
    let mut tallies = Vec::new();
    while let Some(finished) = workers.join_next().await {
        tallies.extend(finished.context("a worker of the comparison died")??);
    }
    tallies.sort_by_key(|(job, _)| *job);
    Ok(tallies.into_iter().map(|(job, tally)| (jobs[job].table, tally)).collect())
}
