//! `cdcprobe report`: a run directory's report, made anew from its files.

use std::path::PathBuf;

use clap::Args;

use crate::report;

#[derive(Debug, Args)]
pub struct ReportArgs {
    /// The run directory, such as one of those in runs/.
    pub run: PathBuf,
}

/// Writes report.md anew and prints the results.
pub fn run(args: &ReportArgs, json: bool) -> anyhow::Result<()> {
    report::print(&report::write(&args.run)?, json)
}
