//! Run directory to terminal, Markdown, JSON.

pub mod live;

use std::path::Path;

use crate::record::RunData;

pub fn print(run: &RunData, _json: bool) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string_pretty(&run.outcome)?);
    Ok(())
}

pub fn write(_dir: &Path) -> anyhow::Result<()> {
    Ok(())
}
