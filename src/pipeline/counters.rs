//! What the pipe knows of itself while it runs, for meters to read.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use crate::{
    change::Table,
    units::{Lsn, PgMicros},
};

/// Shared between the pipe's tasks and whoever watches. Plain counters; nothing here steers the pipe.
#[derive(Debug, Default)]
pub struct Counters {
    /// Bytes of the replication (or COPY) stream received.
    pub received_bytes: AtomicU64,
    /// Row changes decoded and encoded.
    pub decoded_rows: AtomicU64,
    /// Rows in blocks that the target has acknowledged (tombstones of key changes included).
    pub durable_rows: AtomicU64,
    /// Blocks acknowledged.
    pub durable_blocks: AtomicU64,
    /// Attempts repeated after a retryable failure.
    pub retries: AtomicU64,
    /// Inserts under way now.
    pub in_flight_blocks: AtomicU64,
    /// Bytes of encoded rows that are not acknowledged yet.
    pub buffered_bytes: AtomicU64,
    /// Bytes of changes that are kept until their transaction ends.
    pub in_progress_bytes: AtomicU64,
    /// Microseconds that the reader napped, waited for data, and waited for the sink.
    pub nap_us: AtomicU64,
    pub source_wait_us: AtomicU64,
    pub sink_wait_us: AtomicU64,
    /// The walsender's process on the source; 0 before the first session.
    pub walsender_pid: AtomicU64,
    /// End of the last commit decoded.
    decoded_lsn: AtomicU64,
    /// Everything up to here is durable in the target and noted in its checkpoint.
    durable_lsn: AtomicU64,
    /// Commit time of the last transaction that is durable, microseconds since 2000.
    durable_commit_time: AtomicI64,
    /// Values that a policy has put something else in place of, by `schema.table.column`.
    replaced: Mutex<BTreeMap<String, u64>>,
    /// What became visible when, oldest first, until somebody takes it.
    arrivals: Mutex<Vec<Arrival>>,
}

/// A block that the target has acknowledged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrival {
    pub at: Instant,
    pub rows: u32,
    pub bytes: u64,
}

impl Counters {
    pub fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Relaxed);
    }

    pub fn decoded_lsn(&self) -> Lsn {
        Lsn(self.decoded_lsn.load(Relaxed))
    }

    pub fn set_decoded_lsn(&self, lsn: Lsn) {
        self.decoded_lsn.store(lsn.0, Relaxed);
    }

    pub fn durable_lsn(&self) -> Lsn {
        Lsn(self.durable_lsn.load(Relaxed))
    }

    pub fn set_durable(&self, lsn: Lsn, commit_time: Option<PgMicros>) {
        self.durable_lsn.fetch_max(lsn.0, Relaxed);
        if let Some(time) = commit_time {
            self.durable_commit_time.fetch_max(time.0, Relaxed);
        }
    }

    /// `None` before the first transaction is durable.
    pub fn durable_commit_time(&self) -> Option<PgMicros> {
        match self.durable_commit_time.load(Relaxed) {
            0 => None,
            micros => Some(PgMicros(micros)),
        }
    }

    /// Notes a block as acknowledged now.
    pub fn arrived(&self, rows: u32, bytes: u64) {
        Self::add(&self.durable_rows, u64::from(rows));
        Self::add(&self.durable_blocks, 1);
        let arrival = Arrival { at: Instant::now(), rows, bytes };
        self.arrivals.lock().expect("nobody panics while holding it").push(arrival);
    }

    /// Notes what a block had replaced; the first time of a column is told.
    pub fn add_replaced(&self, table: &Table, columns: Vec<(String, u64)>) {
        if columns.is_empty() {
            return;
        }
        let mut replaced = self.replaced.lock().expect("nobody panics while holding it");
        for (column, count) in columns {
            *replaced.entry(format!("{table}.{column}")).or_insert_with(|| {
                tracing::warn!(
                    "values of {table}.{column} have no place in the target: replaced by its policy"
                );
                0
            }) += count;
        }
    }

    /// Values replaced by a policy, by `schema.table.column`.
    pub fn replaced(&self) -> BTreeMap<String, u64> {
        self.replaced.lock().expect("nobody panics while holding it").clone()
    }

    /// All arrivals since the last call.
    pub fn take_arrivals(&self) -> Vec<Arrival> {
        std::mem::take(&mut *self.arrivals.lock().expect("nobody panics while holding it"))
    }
}
