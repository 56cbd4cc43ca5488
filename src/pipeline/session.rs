//! One replication session: a thread that reads and encodes, a task that delivers.
//!
//! The reader has a thread and a runtime of its own: it naps by blocking (naps are shorter than a timer's tick), and it
//! must go on answering the server while the target is slow. It owns the socket and the open blocks; nothing is shared
//! but the counters and the durable position.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{
    Counters, PipeSpec,
    apply::{Applier, Step, encode_failure},
    deliver::{Attempts, Deliverer, Flush},
    in_progress::{Committed, InProgress, Taken},
    spill::ReplayError,
};
use crate::{
    change::Table,
    failure::Failure,
    postgres::{WireError, wire::Wire},
    sink::{Block, Checkpoint, Sink},
    source::stream::{Message, ReplicationStream, Start, StreamError},
    units::Lsn,
};

/// What steers a session from outside.
#[derive(Clone, Debug)]
pub struct Controls {
    pub stop: CancellationToken,
    /// While true nothing is read (the server is still answered): a backlog builds up on purpose.
    pub hold: watch::Receiver<bool>,
}

/// The server hears from us this often: well inside of any wal_sender_timeout that is set in earnest.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// … and this soon after something became durable.
const STATUS_DELAY: Duration = Duration::from_millis(100);
/// What is under way when a stop is asked for has this long to arrive.
const STOP_WITHIN: Duration = Duration::from_secs(30);

/// Streams from `checkpoint` on until `stop`; the checkpoint reached, and what ended the session before that.
///
/// Errors of the source come second in the pair, since they may be retried; those of the target are final here.
pub async fn run<S: Sink>(
    spec: &PipeSpec,
    wire: Wire,
    tables: &[Arc<Table>],
    sink: &Arc<S>,
    checkpoint: Checkpoint,
    counters: &Arc<Counters>,
    controls: &Controls,
) -> anyhow::Result<(Checkpoint, Option<StreamError>)> {
    let start = Start {
        slot: &spec.slot,
        publication: &spec.publication,
        from: checkpoint.lsn,
        binary: tables.iter().all(|table| table.is_binary()),
        streaming: spec.transactions.streaming,
        two_phase: spec.transactions.two_phase,
    };
    let stream = match ReplicationStream::start(wire, &start).await {
        Ok(stream) => stream,
        Err(error) => return Ok((checkpoint, Some(error.into()))),
    };
    counters.walsender_pid.store(stream.backend_pid().unsigned_abs().into(), Relaxed);
    let in_flight = spec.batch.in_flight.max(1) as usize;
    let (flushes, receiver) = mpsc::channel(1);
    let (durable, durable_reader) = watch::channel(checkpoint.lsn);
    let abort = CancellationToken::new();
    counters.set_durable(checkpoint.lsn, None);
    let deliverer = Deliverer {
        sink: Arc::clone(sink),
        flushes: receiver,
        checkpoint,
        durable,
        in_flight,
        counters: Arc::clone(counters),
        cancel: abort.clone(),
    };
    let delivering = tokio::spawn(deliverer.run());
    let reader = Reader {
        stream,
        applier: Applier::new(Arc::clone(sink), tables, spec.batch, Arc::clone(counters)),
        in_progress: InProgress::new(spec.transactions.spill_folder.clone(), Arc::clone(counters)),
        replay: None,
        sink: Arc::clone(sink),
        flushes: Some(flushes),
        durable: durable_reader,
        status: StatusClock { sent_at: Instant::now(), sent: Lsn::ZERO },
        counters: Arc::clone(counters),
        controls: controls.clone(),
        abort: abort.clone(),
    };
    let read = spawn_reader(reader)?.await.context("the stream's thread panicked");
    let checkpoint = delivering.await.context("the delivery's task failed")??;
    match read? {
        Ok(()) => Ok((checkpoint, None)),
        Err(error) => match error.downcast::<StreamError>() {
            Ok(error) => Ok((checkpoint, Some(error))),
            Err(error) => Err(error),
        },
    }
}

type ReadResult = oneshot::Receiver<anyhow::Result<()>>;

fn spawn_reader<S: Sink>(reader: Reader<S>) -> anyhow::Result<ReadResult> {
    let (done, result) = oneshot::channel();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("build a runtime")?;
    // The socket was registered with the main runtime, which goes on driving it.
    let main = tokio::runtime::Handle::current();
    let body = move || {
        let _guard = main.enter();
        // Nobody listens only when the session was dropped: nothing is left to tell.
        let _ = done.send(runtime.block_on(reader.run()));
    };
    thread::Builder::new()
        .name("cdcprobe-stream".to_owned())
        .spawn(body)
        .context("start the stream's thread")?;
    Ok(result)
}

struct StatusClock {
    sent_at: Instant,
    sent: Lsn,
}

struct Reader<S: Sink> {
    stream: ReplicationStream,
    applier: Applier<S>,
    in_progress: InProgress,
    /// A transaction that has committed, and whose changes come before anything else.
    replay: Option<Committed>,
    sink: Arc<S>,
    /// `None` once everything is handed over.
    flushes: Option<mpsc::Sender<Flush<S>>>,
    durable: watch::Receiver<Lsn>,
    status: StatusClock,
    counters: Arc<Counters>,
    controls: Controls,
    abort: CancellationToken,
}

/// The delivery has stopped by itself; its own error says why.
#[derive(Debug, thiserror::Error)]
#[error("the delivery to the target has stopped")]
struct DeliveryStopped;

impl<S: Sink> Reader<S> {
    async fn run(mut self) -> anyhow::Result<()> {
        match self.read_until_stopped().await {
            Ok(()) => self.finish().await,
            // The delivery's own error is the one to tell.
            Err(error) if error.is::<DeliveryStopped>() => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn read_until_stopped(&mut self) -> anyhow::Result<()> {
        while !self.controls.stop.is_cancelled() {
            let (step, reply_requested) = self.consume()?;
            let now = Instant::now();
            self.applier.settle(now);
            let buffered = step != Step::Go;
            match step {
                Step::Truncate { tables, before } => self.truncate(tables, before).await?,
                Step::Resolve => self.resolve().await?,
                Step::Flush => self.flush(None).await?,
                Step::Go if self.applier.batcher().is_due(now, self.is_quiet()) => self.flush(None).await?,
                Step::Go => {}
            }
            self.send_status_if_due(reply_requested).await?;
            self.wait_while_held().await?;
            if !buffered {
                self.read().await?;
            }
        }
        Ok(())
    }

    async fn wait_while_held(&mut self) -> anyhow::Result<()> {
        if !*self.controls.hold.borrow() {
            return Ok(());
        }
        let Controls { stop, mut hold } = self.controls.clone();
        self.flush(None).await?;
        self.answering(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                // The pipe's owner is gone: nobody could ever let go.
                _ = hold.wait_for(|held| !held) => {}
            }
        })
        .await
    }

    /// Works off the messages that are here, up to one that asks for something else first.
    fn consume(&mut self) -> Result<(Step, bool), anyhow::Error> {
        let mut reply = false;
        loop {
            let step = self.replay()?;
            if step != Step::Go {
                return Ok((step, reply));
            }
            let Some(message) = self.stream.next_message()? else { return Ok((Step::Go, reply)) };
            match message {
                Message::Change { lsn, event, raw } => match self.in_progress.take(lsn, &event, raw)? {
                    Taken::Apply => {
                        let step = self.applier.handle(lsn, event)?;
                        if step == Step::Resolve {
                            self.stream.put_back();
                        }
                        if step != Step::Go {
                            return Ok((step, reply));
                        }
                    }
                    Taken::Announced => self.applier.announce_unchanged(&event),
                    Taken::Kept => self.applier.set_ceiling(self.in_progress.ceiling()),
                    Taken::Replay(committed) => {
                        self.applier.begin(committed.commit_time);
                        self.applier.set_ceiling(self.in_progress.ceiling());
                        self.replay = Some(committed);
                    }
                },
                Message::Keepalive { wal_end, reply_requested } => {
                    if !self.in_progress.is_inside_prepare() {
                        self.applier.keepalive(wal_end);
                    }
                    reply |= reply_requested;
                }
            }
        }
    }

    /// Works off the changes of a transaction that has committed.
    fn replay(&mut self) -> Result<Step, anyhow::Error> {
        let Some(committed) = &mut self.replay else { return Ok(Step::Go) };
        loop {
            while let Some((lsn, event)) = committed.changes.next_message().map_err(replay_failure)? {
                let step = self.applier.handle(lsn, event)?;
                if step == Step::Resolve {
                    committed.changes.put_back();
                }
                if step != Step::Go {
                    return Ok(step);
                }
            }
            if !committed.changes.fill().map_err(replay_failure)? {
                break;
            }
        }
        self.applier.commit(committed.end_lsn, committed.commit_time);
        self.replay = None;
        Ok(Step::Go)
    }

    /// Nothing more comes now, and nothing is under way: what has been collected may go.
    fn is_quiet(&self) -> bool {
        !self.stream.is_busy() && self.counters.in_flight_blocks.load(Relaxed) == 0
    }

    async fn read(&mut self) -> anyhow::Result<()> {
        let flush_at = self.applier.batcher().deadline(self.is_quiet());
        let status_at = self.status.sent_at + self.status_interval();
        let until = flush_at.map_or(status_at, |at| at.min(status_at));
        tokio::select! {
            () = self.controls.stop.cancelled() => {}
            read = self.stream.fill() => {
                Counters::add(&self.counters.received_bytes, read.map_err(StreamError::from)? as u64);
            }
            () = tokio::time::sleep_until(until.into()) => {}
        }
        let times = self.stream.take_times();
        Counters::add(&self.counters.nap_us, times.napped.as_micros() as u64);
        Counters::add(&self.counters.source_wait_us, times.waited.as_micros() as u64);
        Ok(())
    }

    fn status_interval(&self) -> Duration {
        if *self.durable.borrow() > self.status.sent { STATUS_DELAY } else { STATUS_INTERVAL }
    }

    async fn send_status_if_due(&mut self, asked: bool) -> anyhow::Result<()> {
        if asked || self.status.sent_at.elapsed() >= self.status_interval() {
            self.send_status().await?;
        }
        Ok(())
    }

    async fn send_status(&mut self) -> anyhow::Result<()> {
        let durable = *self.durable.borrow_and_update();
        self.stream.send_status(durable).await.map_err(StreamError::from)?;
        self.status = StatusClock { sent_at: Instant::now(), sent: durable };
        Ok(())
    }

    /// Hands over what has been collected; waits for room, answering the server meanwhile.
    async fn flush(&mut self, arrived: Option<oneshot::Sender<()>>) -> anyhow::Result<()> {
        if self.applier.has_partials() {
            self.resolve().await?;
        }
        let flush = match (self.applier.take(), arrived) {
            (Some(flush), arrived) => Flush { arrived, ..flush },
            (None, Some(arrived)) => Flush { blocks: Vec::new(), position: None, arrived: Some(arrived) },
            (None, None) => return Ok(()),
        };
        self.hand_over(flush).await
    }

    async fn hand_over(&mut self, flush: Flush<S>) -> anyhow::Result<()> {
        let flushes = self.flushes.clone().ok_or(DeliveryStopped)?;
        let began = Instant::now();
        let room = self.answering(flushes.reserve()).await?;
        Counters::add(&self.counters.sink_wait_us, began.elapsed().as_micros() as u64);
        room.map_err(|_| DeliveryStopped)?.send(flush);
        Ok(())
    }

    /// Waits for something, sending status updates on time.
    async fn answering<T>(&mut self, wait: impl Future<Output = T>) -> anyhow::Result<T> {
        tokio::pin!(wait);
        loop {
            let status_at = self.status.sent_at + self.status_interval();
            tokio::select! {
                biased;
                done = &mut wait => return Ok(done),
                () = tokio::time::sleep_until(status_at.into()) => self.send_status().await?,
            }
        }
    }

    /// Sends blocks and waits until they, and all before them, are durable.
    async fn write_through(&mut self, blocks: Vec<(Arc<Table>, S::Block)>) -> anyhow::Result<()> {
        let (arrived, wait) = oneshot::channel();
        self.hand_over(Flush { blocks, position: None, arrived: Some(arrived) }).await?;
        self.answering(wait).await?.map_err(|_| DeliveryStopped.into())
    }

    /// Completes the rows that wait for unchanged values: all before them first, so that the target can be asked; they
    /// themselves before anything later, which could take the place of what is asked for.
    async fn resolve(&mut self) -> anyhow::Result<()> {
        let before = self.applier.take_blocks();
        self.write_through(before).await?;
        let partials = self.applier.take_partials();
        let (sink, counters, abort) =
            (Arc::clone(&self.sink), Arc::clone(&self.counters), self.abort.clone());
        let completed = self.answering(async move {
            let mut blocks = Vec::with_capacity(partials.len());
            for (table, rows) in partials {
                let mut attempts =
                    Attempts::new(format!("read unchanged values of {table}"), &counters, &abort);
                let block = loop {
                    // A block anew: a failure may have left part of the rows in it.
                    let mut block = sink.block(&table).map_err(|error| encode_failure(&table, error))?;
                    match sink.complete(&table, &rows, &mut block).await {
                        Ok(()) => break block,
                        Err(error) => attempts.after(error).await?,
                    }
                };
                // Rows that a replay finds delivered are left out.
                if block.rows() > 0 {
                    blocks.push((table, block));
                }
            }
            anyhow::Ok(blocks)
        });
        let completed = completed.await??;
        self.write_through(completed).await
    }

    async fn truncate(&mut self, tables: Vec<Arc<Table>>, before: Lsn) -> anyhow::Result<()> {
        let (arrived, wait) = oneshot::channel();
        self.flush(Some(arrived)).await?;
        self.answering(wait).await?.map_err(|_| DeliveryStopped)?;
        let (sink, counters, abort) =
            (Arc::clone(&self.sink), Arc::clone(&self.counters), self.abort.clone());
        self.answering(async move {
            for table in &tables {
                let mut attempts = Attempts::new(format!("truncate {table}'s target"), &counters, &abort);
                while let Err(error) = sink.truncate(table, before).await {
                    attempts.after(error).await?;
                }
            }
            anyhow::Ok(())
        })
        .await?
    }

    /// A stop in order: what is collected arrives, the slot learns of it, the server lets go of the slot.
    async fn finish(mut self) -> anyhow::Result<()> {
        self.flush(None).await?;
        self.flushes = None;
        let mut durable = self.durable.clone();
        let all_arrived = async move { while durable.changed().await.is_ok() {} };
        let in_time = self.answering(tokio::time::timeout(STOP_WITHIN, all_arrived)).await?;
        if in_time.is_err() {
            tracing::warn!("what is under way did not arrive in {STOP_WITHIN:?}; the slot keeps it");
            self.abort.cancel();
        }
        self.send_status().await?;
        self.stream.stop().await.map_err(StreamError::from)?;
        Ok(())
    }
}

fn replay_failure(error: ReplayError) -> anyhow::Error {
    Failure::environment(format!("cannot read back the changes of a large transaction: {error}"))
        .hint("see transactions.spill_folder; nothing is lost: the slot keeps what was not delivered")
        .into()
}

/// Worth another try: the connection broke, the server restarts, or an earlier session still holds the slot.
pub fn is_retryable(error: &StreamError) -> bool {
    match error {
        StreamError::Wire(WireError::Server { code, .. }) if code == "55006" => true,
        StreamError::Wire(error) => error.is_retryable(),
        StreamError::Decode { .. } => false,
    }
}
