//! `drain`: overload the pipe, stop writing, and watch it catch up to a fence.
//!
//! ```text
//!  setup: tables, pipe, a second slot ─> load ─> drain (fence) ─> verify ─> decode_only: the second slot into nothing
//!                                        └ hold: the pipe is held back for the last part
//! ```
//!
//! A pipe that keeps up with the writers has nothing to drain, so it is held back (it answers the server but reads
//! nothing) for the last part of the load; `hold = "0s"` leaves it alone.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use anyhow::Context;
use tokio_postgres::Client;

use super::{Bench, settle::settle};
use crate::{
    config::{DrainProbe, LoadPlan, TableName, Workload},
    load::{self, LoadCounters, LoadResult, simple_update},
    meter::{LoadMeter, Meter, SlotMeter, reader},
    metric::{Point, meter, phase, point},
    pipeline::{self, Counters, FENCE_PREFIX, Pipe, PipeSpec, Target},
    postgres::sql_session,
    record::{live::LiveFigures, sampler::Sampler},
    units::{Lsn, PgMicros},
};

const NAME: &str = "drain";
const SAMPLE: Duration = Duration::from_secs(1);

/// All repeats, each on emptied tables.
pub async fn run(bench: &Bench, probe: &DrainProbe, repeat: u32) -> anyhow::Result<()> {
    let tables = written_tables(&probe.load.workload);
    let spec = bench.spec(NAME, tables, bench.pipeline.snapshot_workers)?;
    let target = Target::ClickHouse(bench.target.clone());
    for run in 1..=repeat {
        clean(bench, &spec, &target, &probe.load.workload).await?;
        let done = one(bench, probe, &spec, &target, run).await;
        let cleaned = match bench.keep {
            true => Ok(()),
            false => clean(bench, &spec, &target, &probe.load.workload).await,
        };
        // What ended the repeat is told first.
        done.and(cleaned)?;
    }
    Ok(())
}

/// The tables whose rows the pipe has to carry.
fn written_tables(workload: &Workload) -> Vec<TableName> {
    match workload {
        Workload::InsertBatch { table, .. } => vec![table.clone()],
        // The history has no key by which its rows could be followed.
        Workload::SimpleUpdate { .. } => vec![TableName::new("public", "pgbench_accounts")],
    }
}

fn decode_slot(spec: &PipeSpec) -> String {
    format!("{}_decode", spec.slot)
}

async fn clean(bench: &Bench, spec: &PipeSpec, target: &Target, workload: &Workload) -> anyhow::Result<()> {
    pipeline::remove(spec, target).await.context("remove what an earlier drain left")?;
    pipeline::drop_slot(&bench.source, &decode_slot(spec)).await?;
    let client = sql_session(&bench.source, "cdcprobe drain").await?;
    if let Workload::InsertBatch { table, .. } = workload {
        load::drop_table(&client, table).await?;
    }
    Ok(())
}

async fn one(
    bench: &Bench,
    probe: &DrainProbe,
    spec: &PipeSpec,
    target: &Target,
    run: u32,
) -> anyhow::Result<()> {
    let point = point([("probe", NAME)]);
    let client = sql_session(&bench.source, "cdcprobe drain").await?;
    create_tables(&client, &probe.load.workload).await?;
    let mut pipe = Pipe::start(spec.clone(), target.clone());
    let drained = load_and_drain(bench, probe, spec, &client, &mut pipe, (run, &point)).await;
    // Stopped in either case, so that its slot is free to be dropped.
    let stopped = pipe.stop().await;
    let fence = drained.and_then(|fence| stopped.map(|()| fence))?;
    bench.verify(run, &point, &spec.tables).await?;
    if probe.decode_only {
        let settling = bench.phase(run, &point, "settle")?;
        settle(bench).await?;
        settling.end()?;
        decode_only(bench, spec, run, &point, fence).await?;
    }
    Ok(())
}

/// The part with the pipe running; returns the fence that it reached.
async fn load_and_drain(
    bench: &Bench,
    probe: &DrainProbe,
    spec: &PipeSpec,
    client: &Client,
    pipe: &mut Pipe,
    (run, point): (u32, &Point),
) -> anyhow::Result<Lsn> {
    let setup = bench.phase(run, point, phase::SETUP)?;
    bench.or_stop(pipe.streaming()).await?;
    if probe.decode_only {
        pipeline::create_slot(&bench.source, &decode_slot(spec)).await?;
    }
    let counters = Arc::clone(&pipe.counters);
    let arrivals = bench.record_arrivals(&counters);
    let mut sampler = bench.sampler(&counters, &spec.tables);
    bench.watch_walsender(&mut sampler, &counters);
    let mut slot = SlotMeter::new(meter::SLOT, &bench.source, &spec.slot);
    // One reading before the first row, whatever the sampler's timing.
    bench.dir.sample(bench.dir.clock().now_us(), meter::SLOT, slot.sample().await?)?;
    sampler.meter(meter::SLOT, SAMPLE, reader(slot));
    let before = counters.durable_rows.load(Relaxed);
    setup.end()?;

    let begun = bench.phase(run, point, phase::LOAD)?;
    let loading = load::start(&bench.source, &probe.load, &bench.stop).await?;
    let written = Arc::clone(loading.counters());
    sampler.meter(meter::LOAD, SAMPLE, reader(LoadMeter::new(Arc::clone(&written))));
    let live = Live::new(bench, client, &counters, &written, &probe.load);
    let load = live.during(load_and_hold(bench, probe, run, point, pipe, loading)).await?;
    let fence = write_fence(client).await?;
    record_load(bench, &probe.load, &load, bench.dir.clock().t_us(load.ended))?;
    begun.end()?;
    bench.check_stop()?;

    let draining = bench.phase(run, point, phase::DRAIN)?;
    pipe.hold(false);
    live.during(bench.or_stop(pipe.durable(fence))).await?;
    draining.end()?;
    arrivals.finish().await?;
    let arrived = counters.durable_rows.load(Relaxed) - before;
    bench.or_stop(confirmed(client, &spec.slot, fence)).await?;
    record_fence(bench, spec, &probe.load, fence, load.rows, arrived).await?;
    sampler.stop().await?;
    Ok(fence)
}

/// Waits for the writers; holds the pipe back for the last part of their time.
async fn load_and_hold(
    bench: &Bench,
    probe: &DrainProbe,
    run: u32,
    point: &Point,
    pipe: &Pipe,
    loading: load::Running,
) -> anyhow::Result<LoadResult> {
    let finish = loading.finish();
    tokio::pin!(finish);
    tokio::select! {
        done = &mut finish => return done,
        () = tokio::time::sleep(probe.load.duration.saturating_sub(probe.hold)) => {}
    }
    if probe.hold.is_zero() {
        return finish.await;
    }
    let held = bench.phase(run, point, "hold")?;
    pipe.hold(true);
    let done = finish.await;
    held.end()?;
    done
}

async fn create_tables(client: &Client, workload: &Workload) -> anyhow::Result<()> {
    match workload {
        Workload::InsertBatch { table, .. } => load::create_table(client, table).await?,
        Workload::SimpleUpdate { scale } => simple_update::create_tables(client, *scale).await?,
    };
    Ok(())
}

/// The source's position behind everything written, and a marker behind that: when the marker is durable, all is.
async fn write_fence(client: &Client) -> anyhow::Result<Lsn> {
    let row = client.query_one("select pg_catalog.pg_current_wal_flush_lsn()::text", &[]).await;
    let lsn = row.context("read the source's WAL position")?.get::<_, &str>(0).parse()?;
    let marker = "select pg_catalog.pg_logical_emit_message(true, $1, 'fence')";
    client.execute(marker, &[&FENCE_PREFIX]).await.context("write the fence")?;
    Ok(lsn)
}

/// Until the slot stands behind the fence, which the server learns a moment after it is durable, so that the last sample
/// shows how far it has moved. A slot that does not get there is for the checks to tell.
async fn confirmed(client: &Client, slot: &str, fence: Lsn) -> anyhow::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(5);
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if pipeline::confirmed_lsn(client, slot).await? >= Some(fence) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

fn record_load(bench: &Bench, plan: &LoadPlan, load: &LoadResult, stopped_us: u64) -> anyhow::Result<()> {
    let operation = match plan.workload {
        Workload::InsertBatch { .. } => "insert-batch",
        Workload::SimpleUpdate { .. } => "simple-update",
    };
    let clock = bench.dir.clock();
    bench.dir.write_latency(operation, clock.t_us(load.started), stopped_us, &load.latency_us)?;
    bench.sample(
        meter::LOAD_RESULT,
        [
            ("clients", f64::from(load.clients)),
            ("closed_loop", f64::from(u8::from(plan.rate_per_s.is_none()))),
            ("elapsed_s", load.elapsed().as_secs_f64()),
            ("mean_think_s", load.mean_think_s),
            ("saturation", load.saturation()),
            ("errors", load.errors as f64),
            ("unanswered", load.unanswered as f64),
            ("unsent", load.unsent as f64),
        ],
    )?;
    if let Some(error) = &load.first_error {
        bench.watcher.note(&format!("{} statements failed; the first: {error}", load.errors));
    }
    if load.unanswered > 0 {
        bench
            .watcher
            .note(&format!("{} statements were never answered; they may be committed", load.unanswered));
    }
    Ok(())
}

/// Rows inserted are counted where a reader sees them; updates by what arrived, since they leave no rows behind.
async fn record_fence(
    bench: &Bench,
    spec: &PipeSpec,
    plan: &LoadPlan,
    fence: Lsn,
    rows: u64,
    arrived: u64,
) -> anyhow::Result<()> {
    let (written, at_target) = match plan.workload {
        Workload::InsertBatch { .. } => (rows, bench.target_rows(&spec.tables).await?),
        // Of a transaction's two rows the one of the history is not followed.
        Workload::SimpleUpdate { .. } => (rows / 2, arrived),
    };
    bench.sample(
        meter::FENCE,
        [
            ("lsn", fence.0 as f64),
            ("written_rows", written as f64),
            ("target_rows", at_target as f64),
            ("backlog_rows", 0.0),
        ],
    )
}

/// The same changes once more, from the second slot, into nothing, once the servers' own work on the first time has
/// ended: merges and vacuum would take CPU that the drain had.
async fn decode_only(
    bench: &Bench,
    spec: &PipeSpec,
    run: u32,
    point: &Point,
    fence: Lsn,
) -> anyhow::Result<()> {
    let spec = PipeSpec { slot: decode_slot(spec), ..spec.clone() };
    let mut pipe = Pipe::start(spec.clone(), Target::Null);
    let drained = drain_into_nothing(bench, run, point, fence, &mut pipe).await;
    let stopped = pipe.stop().await;
    let dropped = pipeline::drop_slot(&spec.source, &spec.slot).await;
    drained.and(stopped).and(dropped)
}

async fn drain_into_nothing(
    bench: &Bench,
    run: u32,
    point: &Point,
    fence: Lsn,
    pipe: &mut Pipe,
) -> anyhow::Result<()> {
    let phase = bench.phase(run, point, phase::DECODE_ONLY)?;
    let arrivals = bench.record_arrivals(&pipe.counters);
    bench.or_stop(pipe.streaming()).await?;
    let mut sampler = Sampler::new(bench.dir.clone());
    bench.watch_processes(&mut sampler);
    bench.watch_walsender(&mut sampler, &pipe.counters);
    bench.or_stop(pipe.durable(fence)).await?;
    sampler.stop().await?;
    phase.end()?;
    arrivals.finish().await
}

/// The figures shown once a second.
struct Live<'a> {
    bench: &'a Bench,
    client: &'a Client,
    pipe: &'a Counters,
    written: &'a LoadCounters,
    duration: Duration,
    began: Instant,
}

/// What the second before had counted.
#[derive(Clone, Copy)]
struct Tick {
    at: Instant,
    written: u64,
    durable: u64,
}

impl<'a> Live<'a> {
    fn new(
        bench: &'a Bench,
        client: &'a Client,
        pipe: &'a Counters,
        written: &'a LoadCounters,
        plan: &LoadPlan,
    ) -> Self {
        Live { bench, client, pipe, written, duration: plan.duration, began: Instant::now() }
    }

    async fn during<T>(&self, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        tokio::pin!(work);
        let mut tick = tokio::time::interval(SAMPLE);
        let mut before = self.tick();
        loop {
            tokio::select! {
                done = &mut work => return done,
                _ = tick.tick() => before = self.show(before).await,
            }
        }
    }

    fn tick(&self) -> Tick {
        Tick {
            at: Instant::now(),
            written: self.written.rows(),
            durable: self.pipe.durable_rows.load(Relaxed),
        }
    }

    async fn show(&self, before: Tick) -> Tick {
        let now = self.tick();
        let seconds = (now.at - before.at).as_secs_f64().max(1e-3);
        let per_s = |now: u64, before: u64| Some((now - before) as f64 / seconds);
        let done = (self.began.elapsed().as_secs_f64() / self.duration.as_secs_f64()).min(1.0);
        let committed = self.pipe.durable_commit_time();
        let now_us = PgMicros::now().unix_micros() + self.bench.source_offset_us;
        self.bench.watcher.figures(&LiveFigures {
            done: Some(done),
            left_s: None,
            backlog_bytes: self.backlog_bytes().await,
            lag_s: committed.map(|time| (now_us - time.unix_micros()) as f64 / 1e6),
            write_rows_per_s: per_s(now.written, before.written),
            pipe_rows_per_s: per_s(now.durable, before.durable),
            target_rows: Some(now.durable as f64),
        });
        now
    }

    /// A figure that cannot be read now is not shown.
    async fn backlog_bytes(&self) -> Option<f64> {
        let row =
            self.client.query_one("select pg_catalog.pg_current_wal_flush_lsn()::text", &[]).await.ok()?;
        let flushed: Lsn = row.get::<_, &str>(0).parse().ok()?;
        Some(flushed.bytes_since(self.pipe.durable_lsn()) as f64)
    }
}
