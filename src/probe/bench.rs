//! What every probe works with: servers, run directory, watcher; and the few steps that they share.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use anyhow::Context;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{
    config::{Pipeline, SourceEndpoint, TableName, TargetEndpoint},
    failure::{Failure, Kind},
    meter::{ClockMeter, Meter, PipelineMeter, ProcessMeter, TablesMeter, clickhouse::visible_rows, reader},
    metric::{Point, Values, meter},
    pipeline::{self, Counters, PipeSpec},
    record::{Edge, OpenPhase, PhaseMark, RunDir, live::Watcher, sampler::Sampler},
    verify::{self, TablePair, VerifyOptions},
};

/// The servers under test and where the run is written down.
pub struct Bench {
    pub pipeline: Pipeline,
    pub source: SourceEndpoint,
    pub target: TargetEndpoint,
    /// ClickHouse's process, where it runs on this machine.
    pub clickhouse_pid: Option<u32>,
    /// The source runs on this machine: its processes can be read.
    pub source_is_local: bool,
    /// The source's clock minus ours.
    pub source_offset_us: i64,
    pub dir: RunDir,
    pub watcher: Arc<dyn Watcher>,
    pub stop: CancellationToken,
    /// Leave tables, slots and publications in place at the end.
    pub keep: bool,
}

const SAMPLE: Duration = Duration::from_secs(1);
const CLOCK: Duration = Duration::from_secs(5);
const ARRIVALS: Duration = Duration::from_millis(100);

impl Bench {
    /// A pipe of a probe's own, named after it, so that it never meets the pipeline's own slot.
    pub fn spec(&self, probe: &str, tables: Vec<TableName>, workers: u32) -> anyhow::Result<PipeSpec> {
        let mut spec = PipeSpec::new(&self.pipeline, self.source.clone(), tables)?;
        spec.slot = format!("{}_{probe}", spec.slot);
        spec.publication = format!("{}_{probe}", spec.publication);
        spec.snapshot_workers = workers;
        Ok(spec)
    }

    /// Marks a phase and tells whoever watches.
    pub fn phase(&self, run: u32, point: &Point, phase: &str) -> anyhow::Result<OpenPhase> {
        self.watcher.phase(&format!("{} {run}: {}", point["probe"], phase.replace('_', " ")));
        self.dir.start_phase(run, point, phase)
    }

    /// Marks a phase whose bounds (microseconds since the run's start) became known afterwards.
    pub fn mark_phase(
        &self,
        run: u32,
        point: &Point,
        phase: &str,
        bounds_us: (u64, u64),
    ) -> anyhow::Result<()> {
        for (t_us, event) in [(bounds_us.0, Edge::Start), (bounds_us.1, Edge::End)] {
            let (point, phase) = (point.clone(), phase.to_owned());
            self.dir.write_phase(&PhaseMark { t_us, run, point, phase, event })?;
        }
        Ok(())
    }

    pub fn check_stop(&self) -> anyhow::Result<()> {
        if self.stop.is_cancelled() { Err(interrupted().into()) } else { Ok(()) }
    }

    /// The result of something, or the interruption.
    pub async fn or_stop<T>(&self, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(interrupted().into()),
            done = work => done,
        }
    }

    /// A sampler with the meters that every probe reads: the pipe, the processes, the target's tables.
    pub fn sampler(&self, counters: &Arc<Counters>, tables: &[TableName]) -> Sampler {
        let mut sampler = Sampler::new(self.dir.clone());
        let pipe = PipelineMeter::new(meter::PIPE, Arc::clone(counters));
        sampler.meter(meter::PIPE, SAMPLE, reader(pipe));
        let names: Vec<String> = tables.iter().map(pipeline::target_table_name).collect();
        let target = TablesMeter::new(pipeline::target_client(&self.target), &self.target.database, &names);
        sampler.meter("clickhouse", SAMPLE, reader(target));
        sampler.meter(meter::SOURCE_CLOCK, CLOCK, reader(ClockMeter::source(&self.source)));
        self.watch_processes(&mut sampler);
        sampler
    }

    /// This process, and the target's where it runs on this machine.
    pub fn watch_processes(&self, sampler: &mut Sampler) {
        watch_process(sampler, ProcessMeter::own("pipe"));
        if let Some(pid) = self.clickhouse_pid {
            watch_process(sampler, ProcessMeter::new("clickhouse", pid));
        }
    }

    /// The walsender of the pipe's stream, where the source runs on this machine.
    pub fn watch_walsender(&self, sampler: &mut Sampler, counters: &Arc<Counters>) {
        if self.source_is_local {
            let counters = Arc::clone(counters);
            let find =
                move || u32::try_from(counters.walsender_pid.load(Relaxed)).ok().filter(|pid| *pid > 0);
            watch_process(sampler, ProcessMeter::following("walsender", find));
        }
    }

    /// Writes down every block that the target acknowledges, until the returned recorder is finished.
    pub fn record_arrivals(&self, counters: &Arc<Counters>) -> ArrivalRecorder {
        let stop = CancellationToken::new();
        let (dir, counters, stopped) = (self.dir.clone(), Arc::clone(counters), stop.clone());
        let task = tokio::spawn(async move {
            loop {
                let last = stopped.is_cancelled();
                for arrival in counters.take_arrivals() {
                    let values = [("rows", f64::from(arrival.rows)), ("bytes", arrival.bytes as f64)];
                    let values: Values = values.map(|(name, value)| (name.to_owned(), value)).into();
                    dir.sample(dir.clock().t_us(arrival.at), meter::ARRIVAL, values)?;
                }
                if last {
                    return Ok(());
                }
                tokio::select! {
                    () = tokio::time::sleep(ARRIVALS) => {}
                    () = stopped.cancelled() => {}
                }
            }
        });
        ArrivalRecorder { stop, task }
    }

    /// Compares source and target and writes the counts down; what differs is noted by key.
    pub async fn verify(&self, run: u32, point: &Point, tables: &[TableName]) -> anyhow::Result<()> {
        let phase = self.phase(run, point, "verify")?;
        let pair = |table: &TableName| TablePair {
            source: table.clone(),
            target_database: self.target.database.clone(),
            target_table: pipeline::target_table_name(table),
        };
        let pairs: Vec<_> = tables.iter().map(pair).collect();
        let options = VerifyOptions::default();
        let report = self.or_stop(verify::tables(&self.source, &self.target, &pairs, &options)).await?;
        let counts = [
            ("verified_rows", report.verified_rows()),
            ("lost_rows", report.lost_rows()),
            ("extra_rows", report.extra_rows()),
            ("differing_rows", report.differing_rows()),
        ];
        self.sample(meter::VERIFY, counts.map(|(name, count)| (name, count as f64)))?;
        for table in report.tables.iter().filter(|table| !table.examples.is_empty()) {
            let examples = serde_json::to_string(&table.examples).context("write the differences")?;
            self.watcher.note(&format!("{} and {} differ: {examples}", table.source, table.target));
        }
        phase.end()?;
        Ok(())
    }

    /// One sample of now.
    pub fn sample<const N: usize>(&self, meter: &str, values: [(&str, f64); N]) -> anyhow::Result<()> {
        let values = values.map(|(name, value)| (name.to_owned(), value));
        self.dir.sample(self.dir.clock().now_us(), meter, values.into())
    }

    /// Rows that a reader of the target sees, over all tables.
    pub async fn target_rows(&self, tables: &[TableName]) -> anyhow::Result<u64> {
        let client = pipeline::target_client(&self.target);
        let mut rows = 0;
        for table in tables {
            rows += visible_rows(&client, &self.target.database, &pipeline::target_table_name(table)).await?;
        }
        Ok(rows)
    }
}

/// See [`Bench::record_arrivals`].
pub struct ArrivalRecorder {
    stop: CancellationToken,
    task: JoinHandle<anyhow::Result<()>>,
}

impl ArrivalRecorder {
    /// Takes the last arrivals, then ends.
    pub async fn finish(self) -> anyhow::Result<()> {
        self.stop.cancel();
        self.task.await.context("the recorder of arrivals failed")?
    }
}

fn watch_process(sampler: &mut Sampler, process: ProcessMeter) {
    sampler.meter(&format!("{}{}", meter::PROCESS, process.name()), SAMPLE, reader(process));
}

pub fn interrupted() -> Failure {
    Failure::new(Kind::Interrupted, "interrupted")
}
