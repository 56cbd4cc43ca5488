//! Blocks to the target: several inserts under way, acknowledged in order, the checkpoint after them.
//!
//! ```text
//!  stream thread ──Flush──> [bounded channel] ──> deliver ──spawn──> insert, insert, …
//!       ^                                            │ in order
//!       └───────────── durable position <── checkpoint stored in the target
//! ```
//!
//! Backpressure: the channel and the inserts under way hold `in_flight` flushes between them; when they are taken, the
//! stream thread stops reading (but goes on answering the server).

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use futures_util::{StreamExt, stream::FuturesOrdered};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::Counters;
use crate::{
    change::Table,
    failure::Failure,
    sink::{Block, Checkpoint, Sink, SinkError},
    units::{Lsn, PgMicros},
};

/// A place between transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub lsn: Lsn,
    /// Of the last transaction before it; `None`: no transaction moved it.
    pub commit_time: Option<PgMicros>,
}

/// Everything collected since the last flush.
pub struct Flush<S: Sink> {
    pub blocks: Vec<(Arc<Table>, S::Block)>,
    /// Once these blocks and all before them are durable, so is every transaction up to here.
    pub position: Option<Position>,
    /// Told once these blocks and all before them are durable.
    pub arrived: Option<oneshot::Sender<()>>,
}

/// A failure that may go away is given this long, then it is final.
const RETRY_FOR: Duration = Duration::from_secs(300);
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);

/// Delivers one session's flushes until the channel closes; returns when all are durable, or at the first that fails.
pub struct Deliverer<S: Sink> {
    pub sink: Arc<S>,
    pub flushes: mpsc::Receiver<Flush<S>>,
    /// The last checkpoint; its position and sequence move on with what is delivered.
    pub checkpoint: Checkpoint,
    pub durable: watch::Sender<Lsn>,
    pub in_flight: usize,
    pub counters: Arc<Counters>,
    /// Gives up retrying; inserts under way are left alone.
    pub cancel: CancellationToken,
}

type Delivery = JoinHandle<anyhow::Result<(Option<Position>, Option<oneshot::Sender<()>>)>>;

impl<S: Sink> Deliverer<S> {
    pub async fn run(mut self) -> anyhow::Result<Checkpoint> {
        let mut under_way: FuturesOrdered<Delivery> = FuturesOrdered::new();
        let mut open = true;
        while open || !under_way.is_empty() {
            tokio::select! {
                flush = self.flushes.recv(), if open && under_way.len() < self.in_flight => match flush {
                    Some(flush) => under_way.push_back(self.spawn(flush)),
                    None => open = false,
                },
                Some(done) = under_way.next() => {
                    let (position, arrived) = done.context("an insert's task failed")??;
                    if let Some(position) = position {
                        self.store(position).await?;
                    }
                    if let Some(arrived) = arrived {
                        // Whoever asked may have stopped since.
                        let _ = arrived.send(());
                    }
                }
            }
        }
        Ok(self.checkpoint)
    }

    fn spawn(&self, flush: Flush<S>) -> Delivery {
        let (sink, counters, cancel) =
            (Arc::clone(&self.sink), Arc::clone(&self.counters), self.cancel.clone());
        tokio::spawn(async move {
            for (table, block) in flush.blocks {
                write(sink.as_ref(), &table, block, &counters, &cancel).await?;
            }
            Ok((flush.position, flush.arrived))
        })
    }

    /// The checkpoint first, then the word that the slot may move.
    async fn store(&mut self, position: Position) -> anyhow::Result<()> {
        if position.lsn > self.checkpoint.lsn {
            self.checkpoint.lsn = position.lsn;
            self.checkpoint.sequence += 1;
            let mut attempts = Attempts::new("store the checkpoint".to_owned(), &self.counters, &self.cancel);
            while let Err(error) = self.sink.store_checkpoint(&self.checkpoint).await {
                attempts.after(error).await?;
            }
        }
        self.counters.set_durable(position.lsn, position.commit_time);
        self.durable.send_replace(position.lsn);
        Ok(())
    }
}

/// Writes a block, again and again while that may help.
pub async fn write<S: Sink>(
    sink: &S,
    table: &Table,
    mut block: S::Block,
    counters: &Counters,
    cancel: &CancellationToken,
) -> anyhow::Result<()> {
    use std::sync::atomic::Ordering::Relaxed;
    let (rows, bytes) = (block.rows(), block.bytes() as u64);
    counters.in_flight_blocks.fetch_add(1, Relaxed);
    counters.buffered_bytes.fetch_add(bytes, Relaxed);
    let mut attempts = Attempts::new(format!("insert into {table}'s target"), counters, cancel);
    let written = loop {
        match sink.write(table, &mut block).await {
            Ok(()) => break Ok(()),
            Err(error) => {
                if let Err(error) = attempts.after(error).await {
                    break Err(error);
                }
            }
        }
    };
    counters.in_flight_blocks.fetch_sub(1, Relaxed);
    counters.buffered_bytes.fetch_sub(bytes, Relaxed);
    written?;
    counters.arrived(rows, bytes);
    Ok(())
}

/// Counts the attempts at one thing, and says whether another is worth it.
pub struct Attempts<'a> {
    what: String,
    counters: &'a Counters,
    cancel: &'a CancellationToken,
    give_up: Instant,
    backoff: Duration,
}

impl<'a> Attempts<'a> {
    /// `what` reads well behind "cannot".
    pub fn new(what: String, counters: &'a Counters, cancel: &'a CancellationToken) -> Self {
        Attempts { what, counters, cancel, give_up: Instant::now() + RETRY_FOR, backoff: FIRST_BACKOFF }
    }

    /// After a failure: waits, with growing pauses, when it may go away; its error when not, or after [`RETRY_FOR`].
    pub async fn after(&mut self, error: SinkError) -> anyhow::Result<()> {
        let what = &self.what;
        let why = match error {
            SinkError::Permanent(why) => {
                return Err(Failure::environment(format!("cannot {what}: {why}")).into());
            }
            SinkError::Retryable(why) => why,
        };
        if Instant::now() > self.give_up || self.cancel.is_cancelled() {
            let hint = "see the target's log; nothing is lost: the slot keeps what was not delivered";
            return Err(Failure::environment(format!("gave up trying to {what}: {why}")).hint(hint).into());
        }
        Counters::add(&self.counters.retries, 1);
        tracing::warn!(%why, wait = ?self.backoff, "cannot {what}; trying again");
        let jitter = rand::random_range(0.5..1.0);
        tokio::select! {
            () = tokio::time::sleep(self.backoff.mul_f64(jitter)) => {}
            () = self.cancel.cancelled() => {}
        }
        self.backoff = (self.backoff * 2).min(LONGEST_BACKOFF);
        Ok(())
    }
}
