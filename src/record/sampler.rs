//! Reading meters periodically into `samples.jsonl`.
//!
//! Each meter has a task of its own, so a slow one delays no other. A tick that could not be kept is skipped, never
//! made up for in a burst. Two values are added to every sample, so that a reader can tell how far to trust its time:
//! `sample_late_us`, how long after its due instant the reading began, and `sample_read_us`, how long it took. The
//! sample's time is the middle of its reading.

use std::{
    future::Future,
    pin::Pin,
    time::{Duration, Instant},
};

use anyhow::Result;
use tokio::{task::JoinSet, time::MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::{RunClock, RunDir};
use crate::metric::Values;

/// When a tick was due, and how late it came.
#[derive(Clone, Copy, Debug)]
pub struct Tick {
    pub due: Instant,
    pub late: Duration,
}

/// A period, kept as well as the machine allows.
pub struct Ticker(tokio::time::Interval);

impl Ticker {
    /// The first tick is due at once.
    pub fn new(period: Duration) -> Self {
        let mut interval = tokio::time::interval(period);
        interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
        Ticker(interval)
    }

    pub async fn tick(&mut self) -> Tick {
        let due = self.0.tick().await.into_std();
        Tick { due, late: Instant::now().saturating_duration_since(due) }
    }
}

/// One reading of a meter.
pub type Reading = Pin<Box<dyn Future<Output = Result<Values>> + Send>>;

/// Meters being read into a run directory until [`Sampler::stop`].
///
/// ```text
/// meter task ──tick──> read (async) ──> samples.jsonl     one per meter; an error is logged once per streak
/// ```
pub struct Sampler {
    dir: RunDir,
    stop: CancellationToken,
    tasks: JoinSet<Result<MeterReport>>,
}

/// How well a meter was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeterReport {
    pub meter: String,
    pub readings: u64,
    pub failures: u64,
    pub late_max: Duration,
}

impl Sampler {
    pub fn new(dir: RunDir) -> Self {
        Sampler { dir, stop: CancellationToken::new(), tasks: JoinSet::new() }
    }

    /// Reads a meter every `period` from now on. `read` makes one reading; an `Err` is a gap in the samples.
    pub fn meter<F>(&mut self, name: &str, period: Duration, read: F)
    where
        F: FnMut() -> Reading + Send + 'static,
    {
        let task = MeterTask { dir: self.dir.clone(), name: name.to_owned(), read };
        self.tasks.spawn(task.run(period, self.stop.clone()));
    }

    /// Takes a last reading of each meter, then ends. Errors: the run directory could not be written.
    pub async fn stop(mut self) -> Result<Vec<MeterReport>> {
        self.stop.cancel();
        let mut reports = Vec::new();
        while let Some(report) = self.tasks.join_next().await {
            reports.push(report??);
        }
        reports.sort_by(|a, b| a.meter.cmp(&b.meter));
        Ok(reports)
    }
}

struct MeterTask<F> {
    dir: RunDir,
    name: String,
    read: F,
}

impl<F: FnMut() -> Reading + Send + 'static> MeterTask<F> {
    async fn run(mut self, period: Duration, stop: CancellationToken) -> Result<MeterReport> {
        let mut ticker = Ticker::new(period);
        let mut report =
            MeterReport { meter: self.name.clone(), readings: 0, failures: 0, late_max: Duration::ZERO };
        let mut failing = false;
        loop {
            let (tick, last) = tokio::select! {
                biased;
                () = stop.cancelled() => (Tick { due: Instant::now(), late: Duration::ZERO }, true),
                tick = ticker.tick() => (tick, false),
            };
            report.late_max = report.late_max.max(tick.late);
            match self.read_once(tick.late).await {
                Ok(values) => {
                    report.readings += 1;
                    failing = false;
                    self.dir.sample(values.0, &self.name, values.1)?;
                }
                Err(error) => {
                    report.failures += 1;
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!("meter {} cannot be read: {error:#}", self.name);
                    }
                }
            }
            if last {
                return Ok(report);
            }
        }
    }

    async fn read_once(&mut self, late: Duration) -> Result<(u64, Values)> {
        let clock: RunClock = self.dir.clock();
        let begun = Instant::now();
        let mut values = (self.read)().await?;
        let took = begun.elapsed();
        values.insert("sample_late_us".to_owned(), late.as_micros() as f64);
        values.insert("sample_read_us".to_owned(), took.as_micros() as f64);
        Ok((clock.t_us(begun + took / 2), values))
    }
}
