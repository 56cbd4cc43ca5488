//! `backfill`: the initial load of a filled table, at each worker count, beside COPY into nothing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::Context;

use super::Bench;
use crate::{
    config::{BackfillProbe, TableName},
    load,
    metric::{Point, meter, phase, point},
    pipeline::{self, Backfill, Counters, PipeSpec, Target},
    postgres::sql_session,
    record::live::LiveFigures,
};

const NAME: &str = "backfill";

/// Fills the table once, then loads it at every worker count, the counts interleaved over the repeats.
pub async fn run(bench: &Bench, probe: &BackfillProbe, repeat: u32) -> anyhow::Result<()> {
    let tables = vec![probe.table.clone()];
    let target = Target::ClickHouse(bench.target.clone());
    let spec = |workers| bench.spec(NAME, tables.clone(), workers);
    pipeline::remove(&spec(1)?, &target).await.context("remove what an earlier backfill left")?;
    let done = fill_and_load(bench, probe, repeat, &tables, &target).await;
    let cleaned = match bench.keep {
        true => Ok(()),
        false => clean(bench, &spec(1)?, &target).await,
    };
    // What ended the probe is told first.
    done.and(cleaned)
}

async fn clean(bench: &Bench, spec: &PipeSpec, target: &Target) -> anyhow::Result<()> {
    pipeline::remove(spec, target).await?;
    let client = sql_session(&bench.source, "cdcprobe backfill").await?;
    for table in &spec.tables {
        load::drop_table(&client, table).await?;
    }
    Ok(())
}

async fn fill_and_load(
    bench: &Bench,
    probe: &BackfillProbe,
    repeat: u32,
    tables: &[TableName],
    target: &Target,
) -> anyhow::Result<()> {
    fill(bench, probe).await?;
    for run in 1..=repeat {
        for workers in &probe.workers {
            let point = point([("probe", NAME), ("workers", &workers.to_string())]);
            let spec = bench.spec(NAME, tables.to_vec(), *workers)?;
            one(bench, &spec, target, probe.rows, run, &point).await?;
            // The last repeat's rows are compared: they stay for whoever looks.
            if run == repeat {
                bench.verify(run, &point, tables).await?;
            }
            copy_only(bench, &spec, run, &point).await?;
        }
    }
    Ok(())
}

async fn fill(bench: &Bench, probe: &BackfillProbe) -> anyhow::Result<()> {
    let point = point([("probe", NAME)]);
    let phase = bench.phase(0, &point, "fill")?;
    let client = sql_session(&bench.source, "cdcprobe backfill").await?;
    load::drop_table(&client, &probe.table).await?;
    load::create_table(&client, &probe.table).await?;
    let (done, began) = (AtomicU64::new(0), Instant::now());
    let fill = load::fill(&bench.source, &probe.table, probe.rows, probe.payload_bytes, |rows| {
        done.store(rows, Relaxed);
    });
    let progress = |_| {
        let rows = done.load(Relaxed) as f64;
        let per_s = rows / began.elapsed().as_secs_f64();
        bench.watcher.figures(&LiveFigures {
            done: Some(rows / probe.rows as f64),
            left_s: (per_s > 0.0).then(|| (probe.rows as f64 - rows) / per_s),
            write_rows_per_s: Some(per_s),
            ..LiveFigures::default()
        });
    };
    every_second(bench.or_stop(fill), progress).await?;
    phase.end()?;
    Ok(())
}

/// Calls `show` each second, with the number of the second, while the work goes on.
async fn every_second<T>(
    work: impl Future<Output = anyhow::Result<T>>,
    mut show: impl FnMut(u64),
) -> anyhow::Result<T> {
    tokio::pin!(work);
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    let mut seconds = 0;
    loop {
        tokio::select! {
            done = &mut work => return done,
            _ = tick.tick() => {
                show(seconds);
                seconds += 1;
            }
        }
    }
}

async fn one(
    bench: &Bench,
    spec: &PipeSpec,
    target: &Target,
    rows: u64,
    run: u32,
    point: &Point,
) -> anyhow::Result<()> {
    let counters = Arc::new(Counters::default());
    let sampler = bench.sampler(&counters, &spec.tables);
    let loaded = load_tables(bench, spec, target, &counters, rows, (run, point, phase::COPY)).await?;
    sampler.stop().await?;
    let at_target = bench.target_rows(&spec.tables).await?;
    bench.sample(
        meter::FENCE,
        [("written_rows", rows as f64), ("target_rows", at_target as f64), ("backlog_rows", 0.0)],
    )?;
    anyhow::ensure!(loaded.rows == rows, "{} rows were copied, {rows} are in the table", loaded.rows);
    Ok(())
}

/// The same ranges read into nothing: what COPY and the network allow.
async fn copy_only(bench: &Bench, spec: &PipeSpec, run: u32, point: &Point) -> anyhow::Result<()> {
    let counters = Arc::new(Counters::default());
    load_tables(bench, spec, &Target::Null, &counters, 0, (run, point, phase::COPY_ONLY)).await?;
    Ok(())
}

/// One load; set-up and copy are phases of their own.
async fn load_tables(
    bench: &Bench,
    spec: &PipeSpec,
    target: &Target,
    counters: &Arc<Counters>,
    rows: u64,
    (run, point, name): (u32, &Point, &str),
) -> anyhow::Result<Backfill> {
    bench.watcher.phase(&format!("{NAME} {run}: {}", name.replace('_', " ")));
    let clock = bench.dir.clock();
    let arrivals = bench.record_arrivals(counters);
    let mut before = 0;
    let show = |_| {
        let durable = counters.durable_rows.load(Relaxed);
        let per_s = (durable - std::mem::replace(&mut before, durable)) as f64;
        let known = rows > 0;
        bench.watcher.figures(&LiveFigures {
            done: known.then(|| durable as f64 / rows as f64),
            left_s: (known && per_s > 0.0).then(|| (rows.saturating_sub(durable)) as f64 / per_s),
            pipe_rows_per_s: Some(per_s),
            target_rows: Some(durable as f64),
            ..LiveFigures::default()
        });
    };
    let loaded = every_second(pipeline::backfill(spec, target, counters, &bench.stop), show).await?;
    arrivals.finish().await?;
    let began_us = clock.t_us(loaded.began);
    let setup_us = began_us.saturating_sub(loaded.setup.as_micros() as u64);
    if name == phase::COPY {
        bench.mark_phase(run, point, phase::SETUP, (setup_us, began_us))?;
    }
    bench.mark_phase(run, point, name, (began_us, clock.t_us(loaded.ended)))?;
    Ok(loaded)
}
