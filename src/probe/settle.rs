//! Waiting until the servers have done their own work on what was written: merges, vacuum.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Bench;
use crate::{pipeline, postgres::sql_session};

const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Returns when neither server works on what was written before, or after 30 s, with a note of what still ran.
pub async fn settle(bench: &Bench) -> Result<()> {
    let source = sql_session(&bench.source, "cdcprobe settle").await?;
    let target = pipeline::target_client(&bench.target);
    let begun = Instant::now();
    loop {
        let vacuums = source.query_one("select count(*) from pg_catalog.pg_stat_progress_vacuum", &[]).await;
        let vacuums: i64 = vacuums.context("ask the source for vacuums")?.get(0);
        let merges = target.query("select count() from system.merges").fetch_one::<u64>().await;
        let merges = merges.context("ask the target for merges")?;
        if vacuums == 0 && merges == 0 {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            bench.watcher.note(&format!(
                "measured beside {vacuums} vacuums of the source and {merges} merges of the target, which did not end \
                 within {PATIENCE:?}"
            ));
            return Ok(());
        }
        bench
            .or_stop(async {
                tokio::time::sleep(LOOK_AGAIN).await;
                Ok(())
            })
            .await?;
    }
}
