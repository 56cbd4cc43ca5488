//! `cdcprobe report`: a run directory's report, made anew from its files.

use std::{io::Write, path::PathBuf};

use anyhow::Context;
use clap::Args;

use crate::{
    record::{RunDir, run_dir},
    report,
};

#[derive(Debug, Args)]
pub struct ReportArgs {
    /// The run directory, such as one of those in runs/.
    pub run: PathBuf,
}

/// Writes report.md anew and prints the results; as JSON the outcome alone.
pub fn run(args: &ReportArgs, json: bool) -> anyhow::Result<()> {
    let data = RunDir::open(&args.run)?;
    run_dir::write_report(&data.path, &report::markdown(&data))?;
    let text = match json {
        true => serde_json::to_string_pretty(&data.outcome).context("serialise the outcome")? + "\n",
        false => report::terminal(&data, report::wants_colour()),
    };
    std::io::stdout().lock().write_all(text.as_bytes()).context("print the report")
}
