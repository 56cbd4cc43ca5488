//! `cdcprobe verify`: source against target.

use clap::Args;

use super::PipelineArgs;

#[derive(Debug, Args)]
pub struct VerifyArgs {
    #[command(flatten)]
    pub file: PipelineArgs,
}

pub async fn run(_args: VerifyArgs, _json: bool) -> anyhow::Result<()> {
    anyhow::bail!("not wired yet")
}
