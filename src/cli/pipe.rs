//! `cdcprobe pipe`: the pipe alone, until it is stopped.

use std::{io::Write, sync::atomic::Ordering::Relaxed, time::Duration};

use anyhow::Context;
use clap::Args;

use super::{PipelineArgs, own_servers, stop_on_signals};
use crate::{
    config::Pipeline,
    pipeline::{Counters, Pipe, PipeSpec, PipeStage, Target},
    postgres::connect::sql_session,
    units::{ByteSize, Lsn},
};

#[derive(Debug, Args)]
pub struct PipeArgs {
    #[command(flatten)]
    pub file: PipelineArgs,
    /// Stop once everything that the source had when this began is durable in the target.
    #[arg(long)]
    pub until_caught_up: bool,
}

pub async fn run(args: PipeArgs, json: bool) -> anyhow::Result<()> {
    let pipeline = args.file.load()?;
    let (source, target) = own_servers(&pipeline, "pipe")?;
    let stop = stop_on_signals()?;
    let client = sql_session(&source, "cdcprobe pipe").await?;
    let until = if args.until_caught_up { Some(current_lsn(&client).await?) } else { None };
    let spec = PipeSpec::new(&pipeline, source, pipeline.tables.clone())?;
    let mut pipe = Pipe::start(spec, target.map_or(Target::Null, Target::ClickHouse));
    let mut progress = tokio::time::interval(Duration::from_secs(1));
    let mut before = 0;
    loop {
        tokio::select! {
            _ = progress.tick() => {
                before = print_progress(&pipe, before);
                if until.is_some_and(|lsn| pipe.counters.durable_lsn() >= lsn) {
                    pipe.request_stop();
                }
            }
            () = stop.cancelled() => pipe.request_stop(),
            ended = pipe.ended() => {
                ended?;
                break;
            }
        }
    }
    print_summary(&pipeline, &pipe.counters, json)
}

async fn current_lsn(client: &tokio_postgres::Client) -> anyhow::Result<Lsn> {
    let row = client.query_one("select pg_catalog.pg_current_wal_lsn()::text", &[]).await;
    Ok(row.context("read the source's WAL position")?.get::<_, &str>(0).parse()?)
}

fn print_progress(pipe: &Pipe, before: u64) -> u64 {
    let counters = &pipe.counters;
    let rows = counters.durable_rows.load(Relaxed);
    let stage = match pipe.stage() {
        PipeStage::Starting => "starting",
        PipeStage::LoadingTables => "loading tables",
        PipeStage::Streaming => "streaming",
        PipeStage::Stopped => "stopped",
    };
    let _ = writeln!(
        std::io::stderr(),
        "{stage}: {rows} rows durable, {} rows/s, up to {}, {} under way",
        rows - before,
        counters.durable_lsn(),
        ByteSize(counters.buffered_bytes.load(Relaxed)),
    );
    rows
}

fn print_summary(pipeline: &Pipeline, counters: &Counters, json: bool) -> anyhow::Result<()> {
    let (rows, blocks, retries) = (
        counters.durable_rows.load(Relaxed),
        counters.durable_blocks.load(Relaxed),
        counters.retries.load(Relaxed),
    );
    let mut out = std::io::stdout().lock();
    if json {
        let summary = serde_json::json!({
            "slot": pipeline.slot, "durable_rows": rows, "durable_blocks": blocks, "retries": retries,
            "replaced_values": counters.replaced(),
            "durable_lsn": counters.durable_lsn().to_string(),
        });
        writeln!(out, "{summary}").context("print the summary")
    } else {
        let lsn = counters.durable_lsn();
        writeln!(out, "{rows} rows durable in {blocks} blocks, up to {lsn}; {retries} retries")
            .context("print the summary")
    }
}
