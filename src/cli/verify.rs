//! `cdcprobe verify`: source against target, every row and every column.

use std::{io::Write, sync::Arc};

use clap::Args;

use super::{PipelineArgs, own_servers};
use crate::{
    config::{Pipeline, TableName, TargetEndpoint},
    failure::{Failure, Kind},
    sink::clickhouse::quote::table_name,
    verify::{self, TablePair, VerifyOptions, VerifyReport, report::Difference},
};

#[derive(Debug, Args)]
pub struct VerifyArgs {
    #[command(flatten)]
    pub file: PipelineArgs,
    /// Ranges compared at once.
    #[arg(long, default_value_t = 4)]
    pub workers: usize,
}

pub async fn run(args: VerifyArgs, json: bool) -> anyhow::Result<()> {
    let pipeline = args.file.load()?;
    let (source, target) = own_servers(&pipeline, "verify")?;
    let target = target.ok_or_else(|| {
        Failure::config("there is nothing to compare with: target.kind is null")
            .hint("name a ClickHouse in target.url")
    })?;
    let progress = |rows: u64| {
        // Progress that nobody reads any more is no error.
        let _ = writeln!(std::io::stderr(), "{rows} rows compared");
    };
    let options = VerifyOptions {
        workers: args.workers.max(1),
        progress: Arc::new(throttled(progress)),
        ..VerifyOptions::default()
    };
    let report = verify::tables(&source, &target, &pairs(&pipeline, &target), &options).await?;
    print(&report, json)?;
    if report.is_clean() { Ok(()) } else { Err(broken(&report).into()) }
}

/// Each source table with the table that the sink makes of it.
fn pairs(pipeline: &Pipeline, target: &TargetEndpoint) -> Vec<TablePair> {
    let pair = |table: &TableName| TablePair {
        source: table.clone(),
        target_database: target.database.clone(),
        target_table: table_name(&table.schema, &table.name),
    };
    pipeline.tables.iter().map(pair).collect()
}

/// At most one call a second.
fn throttled(tell: impl Fn(u64) + Send + Sync) -> impl Fn(u64) + Send + Sync {
    let last = std::sync::Mutex::new(std::time::Instant::now());
    move |rows| {
        let Ok(mut last) = last.lock() else { return };
        if last.elapsed().as_secs() >= 1 {
            *last = std::time::Instant::now();
            tell(rows);
        }
    }
}

fn broken(report: &VerifyReport) -> Failure {
    let (lost, extra, differing) = (report.lost_rows(), report.extra_rows(), report.differing_rows());
    Failure::new(Kind::Invariant, format!("source and target differ: {lost} rows lost, {extra} extra, {differing} differing"))
        .hint("was the pipe caught up, and is nobody writing? `cdcprobe pipe --until-caught-up` brings the target up to date")
}

fn print(report: &VerifyReport, json: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report.tables)?)?;
        return Ok(());
    }
    for table in &report.tables {
        writeln!(
            out,
            "{}: {} rows equal, {} lost, {} extra, {} differing",
            table.source, table.verified_rows, table.lost_rows, table.extra_rows, table.differing_rows
        )?;
        for example in &table.examples {
            writeln!(out, "  {}", describe(example))?;
        }
    }
    writeln!(out, "{} rows compared in {:.1} s", report.verified_rows(), report.elapsed.as_secs_f64())?;
    Ok(())
}

fn describe(example: &Difference) -> String {
    match example {
        Difference::Lost { key } => format!("lost: ({})", key.join(", ")),
        Difference::Extra { key } => format!("extra: ({})", key.join(", ")),
        Difference::Differing { key, values } => {
            let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "NULL".to_owned());
            let values =
                values.iter().map(|v| format!("{}: {} | {}", v.column, text(&v.source), text(&v.target)));
            format!("differing: ({}) {}", key.join(", "), values.collect::<Vec<_>>().join("; "))
        }
    }
}
