//! The initial load: workers copy ctid ranges of all tables on one exported snapshot, straight into blocks.
//!
//! Each worker owns a connection, a block, and at most one insert under way while it fills the next block.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use anyhow::{Context, bail};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::{Counters, PipeSpec, apply::encode_failure, deliver};
use crate::{
    change::Table,
    failure::{Failure, Kind},
    postgres::catalog::SizedTable,
    sink::{Block, RowMeta, Sink},
    source::snapshot::{BlockRange, RangeReader, RangeStep, plan},
    units::{Lsn, PgMicros},
};

/// Snapshot rows lose against every streamed change, whatever its LSN (docs/architecture.md).
pub const SNAPSHOT_VERSION: Lsn = Lsn::ZERO;

/// What all workers share.
struct Shared<S: Sink> {
    spec: PipeSpec,
    sink: Arc<S>,
    tables: Vec<Arc<Table>>,
    ranges: Mutex<VecDeque<BlockRange>>,
    snapshot: String,
    ranges_taken: AtomicU64,
    loaded_at: PgMicros,
    counters: Arc<Counters>,
    stop: CancellationToken,
}

/// Copies every row of `tables` that `snapshot` sees; returns when all are durable.
pub async fn load_tables<S: Sink>(
    spec: &PipeSpec,
    tables: &[SizedTable],
    snapshot: &str,
    sink: &Arc<S>,
    counters: &Arc<Counters>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let blocks: Vec<u64> = tables.iter().map(|table| table.blocks).collect();
    let shared = Arc::new(Shared {
        spec: spec.clone(),
        sink: Arc::clone(sink),
        tables: tables.iter().map(|table| Arc::new(table.table.clone())).collect(),
        ranges: Mutex::new(plan(&blocks, spec.snapshot_workers).into()),
        snapshot: snapshot.to_owned(),
        ranges_taken: AtomicU64::new(0),
        loaded_at: PgMicros::now(),
        counters: Arc::clone(counters),
        stop: stop.clone(),
    });
    let mut workers = JoinSet::new();
    for _ in 0..spec.snapshot_workers.max(1) {
        workers.spawn(work(Arc::clone(&shared)));
    }
    while let Some(done) = workers.join_next().await {
        done.context("a snapshot worker failed")??;
    }
    Ok(())
}

impl<S: Sink> Shared<S> {
    /// The next range, and what its first row's [`RowMeta::ordinal`] is.
    fn next_range(&self) -> Option<(BlockRange, u64)> {
        const ROWS_OF_A_RANGE: u64 = 1 << 40;
        let range = self.ranges.lock().expect("nobody panics while holding it").pop_front()?;
        Some((range, self.ranges_taken.fetch_add(1, Relaxed) * ROWS_OF_A_RANGE))
    }
}

async fn work<S: Sink>(shared: Arc<Shared<S>>) -> anyhow::Result<()> {
    let reader = RangeReader::open(&shared.spec.source, &shared.snapshot).await;
    let mut worker = Worker {
        reader: reader.context("open a snapshot session")?,
        open: None,
        ordinal: 0,
        sending: None,
        shared,
    };
    while let Some((range, ordinal)) = worker.shared.next_range() {
        worker.ordinal = ordinal;
        worker.copy(range).await?;
    }
    worker.send_open().await?;
    worker.await_sending().await?;
    worker.reader.close().await;
    Ok(())
}

struct Worker<S: Sink> {
    shared: Arc<Shared<S>>,
    reader: RangeReader,
    /// The table being copied, and its rows so far.
    open: Option<(usize, S::Block)>,
    /// Of the next row.
    ordinal: u64,
    sending: Option<JoinHandle<anyhow::Result<()>>>,
}

impl<S: Sink> Worker<S> {
    async fn copy(&mut self, range: BlockRange) -> anyhow::Result<()> {
        if self.open.as_ref().is_some_and(|(table, _)| *table != range.table) {
            self.send_open().await?;
        }
        let table = Arc::clone(&self.shared.tables[range.table]);
        let context = || format!("copy {table}");
        self.reader.start(&table, range).await.map_err(Failure::from).with_context(context)?;
        loop {
            match self.take_rows(&table, range.table).with_context(context)? {
                Taken::Done => break,
                Taken::Full => self.send_open().await?,
                Taken::NeedFill => {
                    if self.shared.stop.is_cancelled() {
                        bail!(Failure::new(Kind::Interrupted, "interrupted while tables were copied"));
                    }
                    let bytes = self.reader.fill().await.map_err(Failure::from).with_context(context)?;
                    Counters::add(&self.shared.counters.received_bytes, bytes as u64);
                }
            }
        }
        self.reader.finish().await.map_err(Failure::from).with_context(context)
    }

    /// Encodes the rows that are here.
    fn take_rows(&mut self, table: &Table, index: usize) -> anyhow::Result<Taken> {
        let limits = self.shared.spec.batch;
        let (_, block) = match &mut self.open {
            Some(open) => open,
            empty => {
                let block = self.shared.sink.block(table).map_err(|error| encode_failure(table, error))?;
                empty.insert((index, block))
            }
        };
        let before = block.rows();
        let taken = loop {
            match self.reader.next_step()? {
                RangeStep::NoRow => {}
                RangeStep::NeedFill => break Taken::NeedFill,
                RangeStep::Done => break Taken::Done,
                RangeStep::Row(row) => {
                    let (ordinal, committed_at) = (self.ordinal, self.shared.loaded_at);
                    self.ordinal += 1;
                    block
                        .push(row.values(), RowMeta { lsn: SNAPSHOT_VERSION, ordinal, committed_at })
                        .map_err(|error| encode_failure(table, error))?;
                    if block.rows() >= limits.max_rows || block.bytes() as u64 >= limits.max_bytes.0 {
                        break Taken::Full;
                    }
                }
            }
        };
        Counters::add(&self.shared.counters.decoded_rows, u64::from(block.rows() - before));
        Ok(taken)
    }

    async fn send_open(&mut self) -> anyhow::Result<()> {
        let Some((table, mut block)) = self.open.take() else { return Ok(()) };
        self.shared.counters.add_replaced(&self.shared.tables[table], block.take_replaced());
        self.await_sending().await?;
        let shared = Arc::clone(&self.shared);
        self.sending = Some(tokio::spawn(async move {
            let table = &shared.tables[table];
            deliver::write(shared.sink.as_ref(), table, block, &shared.counters, &shared.stop).await
        }));
        Ok(())
    }

    async fn await_sending(&mut self) -> anyhow::Result<()> {
        let Some(sending) = self.sending.take() else { return Ok(()) };
        let began = std::time::Instant::now();
        let sent = sending.await.context("an insert's task failed")?;
        self.shared.counters.sink_wait_us.fetch_add(began.elapsed().as_micros() as u64, Relaxed);
        sent
    }
}

enum Taken {
    NeedFill,
    Full,
    Done,
}
