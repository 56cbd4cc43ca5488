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
    sync::{mpsc, watch},
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

type Delivery = JoinHandle<anyhow::Result<Option<Position>>>;

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
                    if let Some(position) = done.context("an insert's task failed")?? {
                        self.store(position).await?;
                    }
                }
            }
        }
        Ok(self.checkpoint)
    }

    fn spawn(&self, flush: Flush<S>) -> Delivery {
        let (sink, counters, cancel) = (Arc::clone(&self.sink), Arc::clone(&self.counters), self.cancel.clone());
        tokio::spawn(async move {
            for (table, block) in flush.blocks {
                write(sink.as_ref(), &table, block, &counters, &cancel).await?;
            }
            Ok(flush.position)
        })
    }

    /// The checkpoint first, then the word that the slot may move.
    async fn store(&mut self, position: Position) -> anyhow::Result<()> {
        if position.lsn > self.checkpoint.lsn {
            self.checkpoint.lsn = position.lsn;
            self.checkpoint.sequence += 1;
            let (sink, checkpoint) = (self.sink.as_ref(), &self.checkpoint);
            retry("store the checkpoint", &self.counters, &self.cancel, async || {
                sink.store_checkpoint(checkpoint).await
            })
            .await?;
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
    let what = format!("insert into {table}'s target");
    let written = retry(&what, counters, cancel, async || sink.write(table, &mut block).await).await;
    counters.in_flight_blocks.fetch_sub(1, Relaxed);
    counters.buffered_bytes.fetch_sub(bytes, Relaxed);
    written?;
    counters.arrived(rows, bytes);
    Ok(())
}

/// Repeats what is retryable, with growing pauses, for [`RETRY_FOR`].
pub async fn retry(
    what: &str,
    counters: &Counters,
    cancel: &CancellationToken,
    mut attempt: impl AsyncFnMut() -> Result<(), SinkError>,
) -> anyhow::Result<()> {
    let give_up = Instant::now() + RETRY_FOR;
    let mut backoff = FIRST_BACKOFF;
    loop {
        let why = match attempt().await {
            Ok(()) => return Ok(()),
            Err(SinkError::Permanent(why)) => return Err(Failure::environment(format!("cannot {what}: {why}")).into()),
            Err(SinkError::Retryable(why)) => why,
        };
        if Instant::now() > give_up || cancel.is_cancelled() {
            let hint = "see the target's log; nothing is lost: the slot keeps what was not delivered";
            return Err(Failure::environment(format!("gave up trying to {what}: {why}")).hint(hint).into());
        }
        Counters::add(&counters.retries, 1);
        tracing::warn!(%why, wait = ?backoff, "cannot {what}; trying again");
        let jitter = rand::random_range(0.5..1.0);
        tokio::select! {
            () = tokio::time::sleep(backoff.mul_f64(jitter)) => {}
            () = cancel.cancelled() => {}
        }
        backoff = (backoff * 2).min(LONGEST_BACKOFF);
    }
}
