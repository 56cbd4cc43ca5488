//! `cdcprobe check`: what a pipeline file would do, and what hinders it; changes nothing.

use std::io::Write;

use anyhow::Context;
use clap::Args;

use super::{PipelineArgs, Told};
use crate::{
    check::{self, CheckReport, report},
    failure::Failure,
};

#[derive(Debug, Args)]
pub struct CheckArgs {
    #[command(flatten)]
    pub file: PipelineArgs,
    /// Print the SQL that would mend what was found, instead of the findings; it is not executed.
    #[arg(long)]
    pub fix: bool,
}

pub async fn run(args: CheckArgs, json: bool) -> anyhow::Result<()> {
    let pipeline = args.file.load()?;
    let report = check::check(&pipeline).await;
    print(&report, args.fix, json)?;
    match check::gravest(&report.findings) {
        None => Ok(()),
        Some(kind) => {
            let plural = if report.errors == 1 { "problem hinders" } else { "problems hinder" };
            let failure = Failure::new(kind, format!("{} {plural} this pipeline", report.errors));
            Err(anyhow::Error::from(failure).context(Told))
        }
    }
}

fn print(report: &CheckReport, fix: bool, json: bool) -> anyhow::Result<()> {
    let text = match (json, fix) {
        (true, _) => format!("{}\n", serde_json::to_string_pretty(report)?),
        (false, true) => report::script(report),
        (false, false) => report::text(report),
    };
    std::io::stdout().lock().write_all(text.as_bytes()).context("print the check")
}
