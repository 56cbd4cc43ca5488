//! Where rows go: one trait, its promises, and what keeps them.
//!
//! # The contract of [`Sink`]
//!
//! 1. **Durable when `Ok`.** [`Sink::write`] returns `Ok` only when the target has answered that it has every row of the
//!    block. An error says nothing about how many rows arrived: all, some or none.
//! 2. **Idempotent.** Rows carry their version ([`RowMeta::lsn`]). Writing a block again, alone or among later blocks,
//!    leaves what a reader sees unchanged; so every error may be answered by writing the same block again.
//! 3. **Order does not matter** between blocks: of two rows with one key the larger version wins, whenever it arrives. A
//!    tombstone is a row, and is replayed like one.
//! 4. **[`Sink::truncate`] is ordered**: the caller waits for every earlier write first. It removes the rows below the
//!    given version only, so that a replay removes nothing that came after.
//! 5. **Checkpoints are written after the rows that they vouch for**, by the caller, and are never ahead of them.
//! 6. **Errors are sorted**: [`SinkError::Retryable`] may go away by itself; [`SinkError::Permanent`] will not, and the
//!    pipe stops. Neither is ever taken for success.
//! 7. **Nothing is created or changed before [`Sink::prepare`]**, which refuses a target that cannot take every value.

pub mod clickhouse;
pub mod null;

use std::future::Future;

use crate::{
    change::{StoredTuple, Table, Value},
    units::{Lsn, PgMicros},
};

/// A source table by schema and name.
pub type TableRef<'a> = (&'a str, &'a str);

/// What a row carries beside its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowMeta {
    /// The LSN of the change's own WAL record; 0 for a row of the snapshot.
    pub lsn: Lsn,
    /// Tells rows of one LSN apart (one record may hold many); the same whenever the row comes again.
    pub ordinal: u64,
    pub committed_at: PgMicros,
}

/// A row of an update that left values alone which the source then did not send.
#[derive(Clone, Debug)]
pub struct PartialRow {
    /// Whose row the missing values belong to, and the row's own key, both as [`Sink::key`] gives them.
    pub old_key: Vec<u8>,
    pub new_key: Vec<u8>,
    /// The old key's values where the update changed the key: its row ends here.
    pub old: Option<StoredTuple>,
    pub new: StoredTuple,
    pub meta: RowMeta,
}

/// Rows of one table on their way, encoded as the sink wants them.
pub trait Block: Send + 'static {
    /// Appends a row. After an error the block is unusable.
    fn push<'a>(&mut self, values: impl Iterator<Item = Value<'a>>, meta: RowMeta)
    -> Result<(), EncodeError>;

    /// Appends a tombstone: of `key` (one value a column) only the key's columns are looked at, or all where there is no
    /// key.
    fn push_tombstone<'a>(
        &mut self,
        key: impl Iterator<Item = Value<'a>>,
        meta: RowMeta,
    ) -> Result<(), EncodeError>;

    fn rows(&self) -> u32;

    /// Columns with values that a policy has put something else in place of, and how many since the last call.
    fn take_replaced(&mut self) -> Vec<(String, u64)> {
        Vec::new()
    }

    /// About how many bytes its buffers hold.
    fn bytes(&self) -> usize;
}

/// A row that cannot be encoded. Permanent: the same row would fail again.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    #[error("a value of column {column} cannot become {target_type}: {error}")]
    Value { column: String, target_type: String, error: clickhouse::encode::ValueError },
    #[error("a row has {found} columns where the table has {expected}")]
    ColumnCount { expected: usize, found: usize },
}

/// How far one slot's changes have arrived, kept in the target beside the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    pub slot: String,
    pub system_identifier: u64,
    pub timeline: u32,
    /// Every transaction that ended up to here is in the target; for `Snapshot`, where the stream will begin.
    pub lsn: Lsn,
    pub stage: Stage,
    /// Grows by one with every checkpoint of the slot: the newest wins, whatever clocks say.
    pub sequence: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Tables are being copied: they are not complete.
    Snapshot,
    Streaming,
}

/// Why the target did not take something.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    #[error("{0}")]
    Retryable(String),
    #[error("{0}")]
    Permanent(String),
}

/// A target. See the module for what it promises.
pub trait Sink: Send + Sync + 'static {
    type Block: Block;

    /// An empty block for a table.
    fn block(&self, table: &Table) -> Result<Self::Block, EncodeError>;

    /// Checks that the server answers and can take every column of every table; changes nothing. Returns what it runs.
    fn check(&self, tables: &[Table]) -> impl Future<Output = anyhow::Result<String>> + Send;

    /// The first of the tables' targets that exists and holds rows.
    fn occupied(&self, tables: &[Table]) -> impl Future<Output = anyhow::Result<Option<String>>> + Send;

    /// Makes room: database, tables, checkpoint table; what exists and fits is used as it is.
    fn prepare(&self, tables: &[Table]) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Empties the tables before their rows are copied (again).
    fn reset(&self, tables: &[Table]) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Drops what a pipe made for these tables and this slot: tables that carry our mark, the slot's checkpoints.
    fn remove(&self, tables: &[TableRef<'_>], slot: &str) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Sends a block's rows and empties it when they are durable; keeps them otherwise.
    fn write(
        &self,
        table: &Table,
        block: &mut Self::Block,
    ) -> impl Future<Output = Result<(), SinkError>> + Send;

    /// Whether rows must have all their values.
    const NEEDS_WHOLE_ROWS: bool = true;

    /// What identifies a row: equal for equal keys, whatever form the values come in.
    fn key<'a>(&self, table: &Table, values: impl Iterator<Item = Value<'a>>)
    -> Result<Vec<u8>, EncodeError>;

    /// Appends rows, with the tombstones of their old keys, to a block, their missing values read from the target. The
    /// caller sees to it that every earlier change of these keys is durable, that no later one is, and that no key
    /// stands in two of the rows.
    fn complete(
        &self,
        table: &Table,
        rows: &[PartialRow],
        block: &mut Self::Block,
    ) -> impl Future<Output = Result<(), SinkError>> + Send;

    /// Removes the table's rows below a version.
    fn truncate(&self, table: &Table, before: Lsn) -> impl Future<Output = Result<(), SinkError>> + Send;

    fn load_checkpoint(&self, slot: &str) -> impl Future<Output = anyhow::Result<Option<Checkpoint>>> + Send;

    fn store_checkpoint(&self, checkpoint: &Checkpoint)
    -> impl Future<Output = Result<(), SinkError>> + Send;
}
