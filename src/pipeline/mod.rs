//! The pipe: source, batches, sink, checkpoint; wiring only.
//!
//! ```text
//!  preflight ─> prepare ─> load tables (temporary slot, snapshot) ─> promote the slot ─> stream, stream again, …
//!  changes      database,   checkpoint: snapshot                     checkpoint:
//!  nothing      tables,                                              streaming
//!               publication
//! ```

pub mod apply;
pub mod batcher;
pub mod checkpoint;
pub mod counters;
pub mod deliver;
mod in_progress;
pub mod load_tables;
mod partial;
pub mod policies;
pub mod session;
mod spill;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use tokio::{sync::watch, task::JoinHandle};
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

pub use apply::FENCE_PREFIX;
pub use counters::{Arrival, Counters};

use self::{
    checkpoint::{Resume, resume},
    session::Controls,
};
use crate::{
    change::Table,
    config::{BatchLimits, Pipeline, SourceEndpoint, TableName, TargetEndpoint, Transactions, ValuePolicies},
    failure::{Failure, Kind},
    postgres::{
        WireError,
        catalog::{self, SizedTable},
        connect::sql_session,
        wire::Wire,
    },
    sink::{Checkpoint, Sink, Stage, clickhouse::ClickHouseSink, null::NullSink},
    source::{
        slot::{self, System},
        stream::{ReplicationStream, StreamError, TWO_PHASE_SINCE},
    },
    units::Lsn,
};

/// What a pipe reads, and how.
#[derive(Clone, Debug)]
pub struct PipeSpec {
    pub source: SourceEndpoint,
    pub tables: Vec<TableName>,
    pub publication: String,
    pub slot: String,
    pub snapshot_workers: u32,
    pub batch: BatchLimits,
    pub transactions: Transactions,
    pub values: ValuePolicies,
}

impl PipeSpec {
    /// A pipeline's pipe for these tables.
    pub fn new(pipeline: &Pipeline, source: SourceEndpoint, tables: Vec<TableName>) -> anyhow::Result<Self> {
        if tables.is_empty() {
            return Err(Failure::config("source.tables names no table")
                .hint("tables = [\"public.my_table\"] under [source]")
                .into());
        }
        Ok(PipeSpec {
            source,
            tables,
            publication: pipeline.publication.clone(),
            slot: pipeline.slot.clone(),
            snapshot_workers: pipeline.snapshot_workers,
            batch: pipeline.batch,
            transactions: pipeline.transactions.clone(),
            values: pipeline.values.clone(),
        })
    }
}

/// Where a pipe writes.
#[derive(Clone, Debug)]
pub enum Target {
    ClickHouse(TargetEndpoint),
    /// Decode, count, throw away; starts at the slot's own position, without a snapshot.
    Null,
}

/// How far a pipe has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipeStage {
    Starting,
    LoadingTables,
    Streaming,
    Stopped,
}

/// A pipe that runs. Dropping it asks the pipe to stop, without waiting.
pub struct Pipe {
    pub counters: Arc<Counters>,
    stage: watch::Receiver<PipeStage>,
    stop: CancellationToken,
    hold: watch::Sender<bool>,
    /// `None` once its end has been seen.
    running: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Pipe {
    /// Starts on the current runtime.
    pub fn start(spec: PipeSpec, target: Target) -> Pipe {
        let counters = Arc::new(Counters::default());
        let stop = CancellationToken::new();
        let (stage_writer, stage) = watch::channel(PipeStage::Starting);
        let (hold, held) = watch::channel(false);
        let context = (Arc::clone(&counters), Controls { stop: stop.clone(), hold: held });
        let running = tokio::spawn(async move {
            let (counters, controls) = context;
            match target {
                Target::ClickHouse(endpoint) => {
                    let sink = Arc::new(ClickHouseSink::new(endpoint));
                    Run { spec, sink, counters, controls, stage: stage_writer }.run().await
                }
                Target::Null => {
                    let sink = Arc::new(NullSink::default());
                    Run { spec, sink, counters, controls, stage: stage_writer }.run_without_snapshot().await
                }
            }
        });
        Pipe { counters, stage, stop, hold, running: Some(running) }
    }

    pub fn stage(&self) -> PipeStage {
        *self.stage.borrow()
    }

    /// Waits until the pipe streams; its error when it ends before that.
    pub async fn streaming(&mut self) -> anyhow::Result<()> {
        loop {
            if *self.stage.borrow_and_update() == PipeStage::Streaming {
                return Ok(());
            }
            if self.stage.changed().await.is_err() {
                self.ended().await?;
                return Err(Failure::new(Kind::Internal, "the pipe stopped before it streamed").into());
            }
        }
    }

    /// Waits until everything up to `lsn` is durable; the pipe's error when it ends before that.
    pub async fn durable(&mut self, lsn: Lsn) -> anyhow::Result<()> {
        let mut poll = tokio::time::interval(Duration::from_millis(10));
        let counters = Arc::clone(&self.counters);
        while counters.durable_lsn() < lsn {
            tokio::select! {
                _ = poll.tick() => {}
                ended = self.ended() => {
                    ended?;
                    return Err(Failure::new(Kind::Interrupted, "the pipe was stopped before the fence").into());
                }
            }
        }
        Ok(())
    }

    /// Waits for the pipe's end; its error the first time, nothing after that. Cancel-safe.
    pub async fn ended(&mut self) -> anyhow::Result<()> {
        let Some(running) = &mut self.running else { return Ok(()) };
        let ended = running.await;
        self.running = None;
        ended.context("the pipe's task failed")?
    }

    /// Reads nothing while held, so that a backlog builds up; the server is still answered.
    pub fn hold(&self, held: bool) {
        self.hold.send_replace(held);
    }

    /// Asks for a stop: what is under way arrives, the slot learns of it.
    pub fn request_stop(&self) {
        self.stop.cancel();
    }

    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.request_stop();
        self.ended().await
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// What the checks before the first change found.
#[derive(Debug)]
pub struct Ready {
    pub tables: Vec<SizedTable>,
    pub system: System,
    pub resume: Resume,
    pub publication_exists: bool,
    /// The target's own version text.
    pub sink_version: String,
}

/// The tables as the catalog and the file's policies make them.
async fn source_tables(client: &Client, spec: &PipeSpec) -> anyhow::Result<Vec<SizedTable>> {
    let mut tables = catalog::tables(client, &spec.tables).await?;
    policies::apply(&spec.values, &mut tables)?;
    Ok(tables)
}

/// Checks source and target; changes nothing.
pub async fn preflight<S: Sink>(spec: &PipeSpec, sink: &S) -> anyhow::Result<Ready> {
    slot::check_name(&spec.slot)?;
    let client = sql_session(&spec.source, "cdcprobe check").await?;
    let mut wire = ReplicationStream::connect(&spec.source).await.map_err(Failure::from)?;
    let system = slot::identify_system(&mut wire).await.map_err(Failure::from)?;
    check_two_phase(spec, wire.server_version())?;
    wire.terminate().await;
    let slot_info = slot::slot_info(&client, &spec.slot).await?;
    // A snapshot holds a temporary slot when its permanent one is made.
    catalog::check_settings(&client, if slot_info.is_some() { 0 } else { 2 }).await?;
    let tables = source_tables(&client, spec).await?;
    let publication = catalog::publication(&client, &spec.publication).await?;
    if let Some(publication) = &publication {
        catalog::check_publication(&spec.publication, publication, &spec.tables)?;
    }
    let plain: Vec<Table> = tables.iter().map(|table| table.table.clone()).collect();
    let sink_version = sink.check(&plain).await?;
    let checkpoint = sink.load_checkpoint(&spec.slot).await?;
    let resume = resume(&spec.slot, &spec.source.database, checkpoint.as_ref(), slot_info.as_ref(), system)?;
    if resume == Resume::Fresh
        && let Some(table) = sink.occupied(&plain).await?
    {
        return Err(occupied(&table, &spec.slot).into());
    }
    Ok(Ready { tables, system, resume, publication_exists: publication.is_some(), sink_version })
}

fn check_two_phase(spec: &PipeSpec, server_version: u32) -> Result<(), Failure> {
    if spec.transactions.two_phase && server_version < TWO_PHASE_SINCE {
        let major = server_version / 10_000;
        let message =
            format!("PostgreSQL {major} cannot send prepared transactions (transactions.two_phase)");
        return Err(Failure::config(message)
            .hint("it takes PostgreSQL 15; without two_phase they are sent when they commit"));
    }
    Ok(())
}

/// Rows are there that no load of this slot has brought.
pub fn occupied(table: &str, slot: &str) -> Failure {
    Failure::config(format!("the target already holds rows of {table}, but no checkpoint of slot {slot}"))
        .hint("choose another target.database, or drop that table: rows of two loads must not mix")
}

struct Run<S: Sink> {
    spec: PipeSpec,
    sink: Arc<S>,
    counters: Arc<Counters>,
    controls: Controls,
    stage: watch::Sender<PipeStage>,
}

/// A source that cannot be reached is tried again for this long after the last progress.
const RECONNECT_FOR: Duration = Duration::from_secs(300);

impl<S: Sink> Run<S> {
    async fn run(self) -> anyhow::Result<()> {
        let ready = preflight(&self.spec, self.sink.as_ref()).await?;
        self.prepare(&ready).await?;
        let checkpoint = match ready.resume {
            Resume::Fresh => self.load_tables(&ready, 0).await?,
            Resume::Again { sequence } => self.load_tables(&ready, sequence).await?,
            Resume::Stream { from, sequence } => self.adopt(&ready, from, sequence),
        };
        self.counters.set_durable(checkpoint.lsn, None);
        self.stream(&ready.tables, checkpoint).await
    }

    /// For a sink that keeps nothing: the slot's own position is all there is.
    async fn run_without_snapshot(self) -> anyhow::Result<()> {
        let client = sql_session(&self.spec.source, "cdcprobe check").await?;
        let tables = source_tables(&client, &self.spec).await?;
        let info = slot::slot_info(&client, &self.spec.slot).await?.ok_or_else(|| {
            Failure::source(format!("replication slot {} does not exist", self.spec.slot))
                .hint("make it first: a null sink takes no snapshot")
        })?;
        let mut wire = ReplicationStream::connect(&self.spec.source).await.map_err(Failure::from)?;
        let system = slot::identify_system(&mut wire).await.map_err(Failure::from)?;
        wire.terminate().await;
        let from = info.confirmed_flush.unwrap_or(Lsn::ZERO);
        let checkpoint = self.checkpoint(system, from, Stage::Streaming, 1);
        self.sink.store_checkpoint(&checkpoint).await?;
        self.stream(&tables, checkpoint).await
    }

    fn checkpoint(&self, system: System, lsn: Lsn, stage: Stage, sequence: u64) -> Checkpoint {
        let (system_identifier, timeline) = (system.identifier, system.timeline);
        Checkpoint { slot: self.spec.slot.clone(), system_identifier, timeline, lsn, stage, sequence }
    }

    fn adopt(&self, ready: &Ready, from: Lsn, sequence: u64) -> Checkpoint {
        tracing::info!(slot = self.spec.slot, %from, "resuming");
        self.checkpoint(ready.system, from, Stage::Streaming, sequence)
    }

    async fn prepare(&self, ready: &Ready) -> anyhow::Result<()> {
        if !ready.publication_exists {
            let client = sql_session(&self.spec.source, "cdcprobe prepare").await?;
            catalog::create_publication(&client, &self.spec.publication, &self.spec.tables).await?;
        }
        self.sink.prepare(&plain(&ready.tables)).await
    }

    /// Copies all tables, then makes the slot permanent; a crash before that leaves no slot behind.
    async fn load_tables(&self, ready: &Ready, sequence: u64) -> anyhow::Result<Checkpoint> {
        self.stage.send_replace(PipeStage::LoadingTables);
        let temporary = format!("{}{}", self.spec.slot, slot::TEMPORARY_SUFFIX);
        let mut wire = ReplicationStream::connect(&self.spec.source).await.map_err(Failure::from)?;
        let new = create_snapshot_slot(&mut wire, &temporary).await?;
        let mut checkpoint =
            self.checkpoint(ready.system, new.consistent_point, Stage::Snapshot, sequence + 1);
        self.sink.store_checkpoint(&checkpoint).await.context("store the checkpoint")?;
        self.sink.reset(&plain(&ready.tables)).await.context("empty the target's tables")?;
        load_tables::load_tables(
            &self.spec,
            &ready.tables,
            &new.snapshot,
            &self.sink,
            &self.counters,
            &self.controls.stop,
        )
        .await?;
        let client = sql_session(&self.spec.source, "cdcprobe prepare").await?;
        slot::promote(&client, &temporary, &self.spec.slot).await?;
        wire.terminate().await;
        (checkpoint.stage, checkpoint.sequence) = (Stage::Streaming, checkpoint.sequence + 1);
        self.sink.store_checkpoint(&checkpoint).await.context("store the checkpoint")?;
        Ok(checkpoint)
    }

    /// Streams until a stop is asked for; connects again when the source goes away.
    async fn stream(&self, tables: &[SizedTable], mut checkpoint: Checkpoint) -> anyhow::Result<()> {
        let tables: Vec<_> = tables.iter().map(|table| Arc::new(table.table.clone())).collect();
        let mut failing_since = None;
        let mut backoff = Duration::from_millis(100);
        while !self.controls.stop.is_cancelled() {
            let before = checkpoint.lsn;
            let ended = match self.connect(&checkpoint).await? {
                Ok(wire) => {
                    self.stage.send_replace(PipeStage::Streaming);
                    let (spec, sink, counters) = (&self.spec, &self.sink, &self.counters);
                    let session =
                        session::run(spec, wire, &tables, sink, checkpoint, counters, &self.controls).await?;
                    checkpoint = session.0;
                    session.1
                }
                Err(error) => Some(error.into()),
            };
            let Some(error) = ended else { break };
            if !session::is_retryable(&error) {
                return Err(final_failure(error));
            }
            if checkpoint.lsn > before {
                (failing_since, backoff) = (None, Duration::from_millis(100));
            }
            if failing_since.get_or_insert_with(Instant::now).elapsed() > RECONNECT_FOR {
                return Err(final_failure(error));
            }
            Counters::add(&self.counters.retries, 1);
            tracing::warn!(%error, wait = ?backoff, "the replication stream ended; connecting again");
            tokio::select! {
                () = tokio::time::sleep(backoff) => {}
                () = self.controls.stop.cancelled() => {}
            }
            backoff = (backoff * 2).min(Duration::from_secs(5));
        }
        self.stage.send_replace(PipeStage::Stopped);
        Ok(())
    }

    /// A session for the stream, once slot and system are seen to be those of the checkpoint.
    async fn connect(&self, checkpoint: &Checkpoint) -> anyhow::Result<Result<Wire, WireError>> {
        let mut wire = match ReplicationStream::connect(&self.spec.source).await {
            Ok(wire) => wire,
            Err(error) => return Ok(Err(error)),
        };
        let system = match slot::identify_system(&mut wire).await {
            Ok(system) => system,
            Err(error) => return Ok(Err(error)),
        };
        let Ok(client) = sql_session(&self.spec.source, "cdcprobe check").await else {
            return Ok(Err(WireError::Closed));
        };
        let Ok(info) = slot::slot_info(&client, &self.spec.slot).await else {
            return Ok(Err(WireError::Closed));
        };
        resume(&self.spec.slot, &self.spec.source.database, Some(checkpoint), info.as_ref(), system)?;
        Ok(Ok(wire))
    }
}

/// A slot of an earlier process that was killed is there until the server has seen its connection break.
async fn create_snapshot_slot(wire: &mut Wire, name: &str) -> anyhow::Result<slot::NewSlot> {
    const PATIENCE: Duration = Duration::from_secs(15);
    const DUPLICATE_OBJECT: &str = "42710";
    let began = Instant::now();
    loop {
        match slot::create_with_snapshot(wire, name, true).await {
            Err(error) if error.sqlstate() == Some(DUPLICATE_OBJECT) && began.elapsed() < PATIENCE => {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            made => return made.map_err(Failure::from).context("create replication slot"),
        }
    }
}

fn plain(tables: &[SizedTable]) -> Vec<Table> {
    tables.iter().map(|table| table.table.clone()).collect()
}

fn final_failure(error: StreamError) -> anyhow::Error {
    match error {
        StreamError::Wire(error) => anyhow::Error::from(Failure::from(error)).context("stream changes"),
        error @ StreamError::Decode { .. } => Failure::new(Kind::Internal, error.to_string())
            .hint("please report it with the server's version: no message of pgoutput should be unreadable")
            .into(),
    }
}

/// Removes what earlier pipes of this name left: slot, publication, and in the target what carries our mark.
pub async fn remove(spec: &PipeSpec, target: &Target) -> anyhow::Result<()> {
    let client = sql_session(&spec.source, "cdcprobe remove").await?;
    slot::drop(&client, &spec.slot).await?;
    catalog::drop_publication(&client, &spec.publication).await?;
    let tables: Vec<_> =
        spec.tables.iter().map(|table| (table.schema.as_str(), table.name.as_str())).collect();
    match target {
        Target::ClickHouse(endpoint) => {
            ClickHouseSink::new(endpoint.clone()).remove(&tables, &spec.slot).await
        }
        Target::Null => Ok(()),
    }
}

/// The target's name of a source table.
pub fn target_table_name(table: &TableName) -> String {
    crate::sink::clickhouse::quote::table_name(&table.schema, &table.name)
}

/// A client of a ClickHouse target, for whoever reads it.
pub fn target_client(endpoint: &TargetEndpoint) -> clickhouse::Client {
    crate::sink::clickhouse::client(endpoint)
}

/// Makes a slot at the current position, for a pipe into nothing.
pub async fn create_slot(source: &SourceEndpoint, name: &str) -> anyhow::Result<Lsn> {
    slot::check_name(name)?;
    slot::create(&sql_session(source, "cdcprobe prepare").await?, name).await
}

/// Up to where a slot's changes have been confirmed; `None` when there is no such slot.
pub async fn confirmed_lsn(client: &Client, slot: &str) -> anyhow::Result<Option<Lsn>> {
    Ok(slot::slot_info(client, slot).await?.and_then(|slot| slot.confirmed_flush))
}

/// Drops a slot that nobody uses.
pub async fn drop_slot(source: &SourceEndpoint, name: &str) -> anyhow::Result<()> {
    slot::drop(&sql_session(source, "cdcprobe remove").await?, name).await
}

/// What a load of tables into nothing but a target took.
#[derive(Debug)]
pub struct Backfill {
    pub counters: Arc<Counters>,
    /// From the first connection until the snapshot was there.
    pub setup: Duration,
    pub began: Instant,
    pub ended: Instant,
    pub rows: u64,
}

/// Copies the tables once, as a first load would, and leaves no slot behind. `Target::Null` gives COPY's own ceiling.
pub async fn backfill(
    spec: &PipeSpec,
    target: &Target,
    counters: &Arc<Counters>,
    stop: &CancellationToken,
) -> anyhow::Result<Backfill> {
    match target {
        Target::ClickHouse(endpoint) => {
            backfill_into(spec, &Arc::new(ClickHouseSink::new(endpoint.clone())), counters, stop).await
        }
        Target::Null => backfill_into(spec, &Arc::new(NullSink::default()), counters, stop).await,
    }
}

async fn backfill_into<S: Sink>(
    spec: &PipeSpec,
    sink: &Arc<S>,
    counters: &Arc<Counters>,
    stop: &CancellationToken,
) -> anyhow::Result<Backfill> {
    let began_setup = Instant::now();
    let client = sql_session(&spec.source, "cdcprobe backfill").await?;
    let tables = source_tables(&client, spec).await?;
    sink.check(&plain(&tables)).await?;
    sink.prepare(&plain(&tables)).await?;
    sink.reset(&plain(&tables)).await?;
    let mut wire = ReplicationStream::connect(&spec.source).await.map_err(Failure::from)?;
    let temporary = format!("{}{}", spec.slot, slot::TEMPORARY_SUFFIX);
    let new = create_snapshot_slot(&mut wire, &temporary).await?;
    let began = Instant::now();
    load_tables::load_tables(spec, &tables, &new.snapshot, sink, counters, stop).await?;
    let ended = Instant::now();
    wire.terminate().await;
    let rows = counters.durable_rows.load(std::sync::atomic::Ordering::Relaxed);
    Ok(Backfill { counters: Arc::clone(counters), setup: began - began_setup, began, ended, rows })
}
