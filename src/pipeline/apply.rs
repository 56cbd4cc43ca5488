//! Events to rows: what each message of the stream means for the target's tables. No I/O.

use std::{collections::HashMap, sync::Arc, time::Instant};

use anyhow::{Context, bail};

use super::{
    Counters,
    batcher::Batcher,
    deliver::{Flush, Position},
    partial::Partials,
};
use crate::{
    change::{Event, OldRow, Relation, RelationId, Table, Tuple, Value},
    config::BatchLimits,
    failure::Failure,
    sink::{Block, EncodeError, PartialRow, RowMeta, Sink, clickhouse::encode::ValueError},
    units::{Lsn, PgMicros},
};

/// Logical messages with this prefix are ours; their content does not matter.
pub const FENCE_PREFIX: &str = "cdcprobe";

/// What the caller has to do before the next message.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    Go,
    /// Send what has been collected.
    Flush,
    /// Complete the rows that wait for their unchanged values, then come again with this message: it touches one.
    Resolve,
    /// Send what has been collected, wait until it is durable, then remove these tables' rows below the version.
    Truncate {
        tables: Vec<Arc<Table>>,
        before: Lsn,
    },
}

struct TableState<S: Sink> {
    table: Arc<Table>,
    block: Option<S::Block>,
}

/// What an announced relation is to us.
#[derive(Clone, Copy)]
enum Place {
    Table(usize),
    /// In the publication, not in `source.tables`.
    Ignored,
}

/// Collects one session's rows into blocks, table by table.
pub struct Applier<S: Sink> {
    sink: Arc<S>,
    tables: Vec<TableState<S>>,
    places: HashMap<RelationId, Place>,
    /// The last relation looked up: runs of rows are of one table.
    last: Option<(RelationId, Place)>,
    batcher: Batcher,
    partials: Partials,
    commit_time: PgMicros,
    /// Of the last row.
    row: (Lsn, u64),
    in_transaction: bool,
    /// Positions stay at or below this.
    ceiling: Option<Lsn>,
    /// The end of the last commit seen, until it is handed on.
    position: Option<Position>,
    rows: u64,
    counters: Arc<Counters>,
}

impl<S: Sink> Applier<S> {
    pub fn new(sink: Arc<S>, tables: &[Arc<Table>], limits: BatchLimits, counters: Arc<Counters>) -> Self {
        let tables =
            tables.iter().map(|table| TableState { table: Arc::clone(table), block: None }).collect();
        Applier {
            sink,
            tables,
            places: HashMap::new(),
            last: None,
            batcher: Batcher::new(limits),
            partials: Partials::default(),
            commit_time: PgMicros::default(),
            row: (Lsn::ZERO, 0),
            in_transaction: false,
            ceiling: None,
            position: None,
            rows: 0,
            counters,
        }
    }

    /// One message. `lsn` is that of the change's own record.
    #[inline]
    pub fn handle(&mut self, lsn: Lsn, event: Event<'_>) -> anyhow::Result<Step> {
        if !self.partials.is_empty() && self.touches_partial(&event)? {
            return Ok(Step::Resolve);
        }
        match event {
            Event::Insert { relation, new, .. } => self.insert(lsn, relation, new)?,
            Event::Update { relation, old, new, .. } if S::NEEDS_WHOLE_ROWS && lacks_values(old, new) => {
                self.keep_partial(lsn, relation, old, new)?;
            }
            Event::Update { relation, old, new, .. } => self.update(lsn, relation, old, new)?,
            Event::Delete { relation, old, .. } => self.delete(lsn, relation, old)?,
            Event::Begin { commit_time, .. } => self.begin(commit_time),
            Event::Commit { end_lsn, commit_time, .. } => self.commit(end_lsn, commit_time),
            Event::Relation { relation, .. } => self.announce(&relation)?,
            Event::Truncate { relations, .. } => return self.truncate(lsn, &relations),
            Event::Message { prefix, .. } if prefix == FENCE_PREFIX.as_bytes() => self.batcher.add_fence(),
            Event::Message { .. } | Event::Origin { .. } | Event::Type { .. } => {}
            other => bail!("{other:?} belongs to a transaction in progress, and cannot be applied"),
        }
        Ok(if self.batcher.is_full() || self.partials.is_full() { Step::Flush } else { Step::Go })
    }

    /// A row of the event has a key that a waiting row has.
    fn touches_partial(&mut self, event: &Event<'_>) -> anyhow::Result<bool> {
        let (relation, rows) = match event {
            Event::Insert { relation, new, .. } => (*relation, [Some(*new), None]),
            Event::Update { relation, old, new, .. } => {
                (*relation, [Some(*new), old.as_ref().map(OldRow::tuple)])
            }
            Event::Delete { relation, old, .. } => (*relation, [Some(old.tuple()), None]),
            Event::Truncate { relations, .. } => {
                let mut touched = false;
                for relation in relations {
                    touched |= matches!(self.place(*relation)?, Place::Table(index) if self.partials.has_rows_of(index));
                }
                return Ok(touched);
            }
            _ => return Ok(false),
        };
        let Place::Table(index) = self.place(relation)? else { return Ok(false) };
        if !self.partials.has_rows_of(index) {
            return Ok(false);
        }
        for row in rows.into_iter().flatten() {
            let key = self.key(index, row)?;
            if self.partials.touches(index, &key) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn key(&self, index: usize, row: Tuple<'_>) -> anyhow::Result<Vec<u8>> {
        let table = &self.tables[index].table;
        Ok(self.sink.key(table, row.values()).map_err(|error| encode_failure(table, error))?)
    }

    /// An update that does not carry all values: it waits until the target can be asked.
    fn keep_partial(
        &mut self,
        lsn: Lsn,
        relation: RelationId,
        old: Option<OldRow<'_>>,
        new: Tuple<'_>,
    ) -> anyhow::Result<()> {
        let Place::Table(index) = self.place(relation)? else { return Ok(()) };
        let table = &self.tables[index].table;
        let old = old.map(|old| old.tuple()).filter(|old| key_changed(table, *old, new));
        let new_key = self.key(index, new)?;
        let old_key = match old {
            Some(old) => self.key(index, old)?,
            None => new_key.clone(),
        };
        let meta = self.next_row(lsn);
        let row = PartialRow { old_key, new_key, old: old.map(|old| old.store()), new: new.store(), meta };
        self.batcher.add_row(row.new.bytes());
        self.partials.add(index, row);
        self.rows += 1;
        Ok(())
    }

    /// Rows wait for values of the target.
    pub fn has_partials(&self) -> bool {
        !self.partials.is_empty()
    }

    pub fn take_partials(&mut self) -> Vec<(Arc<Table>, Vec<PartialRow>)> {
        let rows = self.partials.take().into_iter();
        rows.map(|(index, rows)| (Arc::clone(&self.tables[index].table), rows)).collect()
    }

    /// The server has sent everything up to `wal_end`: outside of a transaction nothing before it is left.
    pub fn keepalive(&mut self, wal_end: Lsn) {
        if !self.in_transaction {
            self.advance(Position { lsn: wal_end, commit_time: None });
        }
    }

    /// What comes next is of a transaction that committed then.
    pub fn begin(&mut self, commit_time: PgMicros) {
        self.commit_time = commit_time;
        self.in_transaction = true;
    }

    /// Everything of the transaction has come.
    pub fn commit(&mut self, end_lsn: Lsn, commit_time: PgMicros) {
        self.in_transaction = false;
        self.counters.set_decoded_lsn(end_lsn);
        self.advance(Position { lsn: end_lsn, commit_time: Some(commit_time) });
    }

    /// From now on positions stay at or below this.
    pub fn set_ceiling(&mut self, ceiling: Option<Lsn>) {
        self.ceiling = ceiling;
    }

    fn advance(&mut self, next: Position) {
        let lsn = self.ceiling.map_or(next.lsn, |ceiling| next.lsn.min(ceiling));
        let next = Position { lsn, ..next };
        let before = self.position.map_or(self.counters.durable_lsn(), |position| position.lsn);
        if next.lsn > before {
            let commit_time = next.commit_time.or(self.position.and_then(|position| position.commit_time));
            self.position = Some(Position { commit_time, ..next });
        }
    }

    fn announce(&mut self, relation: &Relation) -> anyhow::Result<()> {
        let index = self.tables.iter().position(|state| {
            state.table.id == relation.id
                || (&state.table.schema, &state.table.name) == (&relation.schema, &relation.name)
        });
        let place = match index {
            None => Place::Ignored,
            Some(index) => {
                let table = &self.tables[index].table;
                if table.id != relation.id {
                    return Err(changed(table, "it was dropped and made anew").into());
                }
                if let Some(difference) = table.difference(relation) {
                    return Err(changed(table, &difference).into());
                }
                Place::Table(index)
            }
        };
        self.places.insert(relation.id, place);
        self.last = None;
        Ok(())
    }

    /// A relation of a transaction that has not committed: it counts where it is as it was, or is none of ours. One that
    /// the transaction has changed is told of again if the transaction is rolled back.
    pub fn announce_unchanged(&mut self, event: &Event<'_>) {
        let Event::Relation { relation, .. } = event else { return };
        let ours = self.tables.iter().position(|state| state.table.id == relation.id);
        let place = match ours {
            None => Place::Ignored,
            Some(index) if self.tables[index].table.difference(relation).is_some() => return,
            Some(index) => Place::Table(index),
        };
        self.places.insert(relation.id, place);
        self.last = None;
    }

    #[inline]
    fn place(&mut self, relation: RelationId) -> anyhow::Result<Place> {
        if let Some((last, place)) = self.last
            && last == relation
        {
            return Ok(place);
        }
        let place = *self
            .places
            .get(&relation)
            .with_context(|| format!("rows of relation {} came before its description", relation.0))?;
        self.last = Some((relation, place));
        Ok(place)
    }

    /// Rows of one LSN are of one record, and come in the same order each time.
    #[inline]
    fn next_row(&mut self, lsn: Lsn) -> RowMeta {
        let ordinal = if self.row.0 == lsn { self.row.1 + 1 } else { 0 };
        self.row = (lsn, ordinal);
        RowMeta { lsn, ordinal, committed_at: self.commit_time }
    }

    #[inline]
    fn push(
        &mut self,
        relation: RelationId,
        lsn: Lsn,
        write: impl FnOnce(&mut S::Block, &Table, RowMeta) -> Result<(), EncodeError>,
    ) -> anyhow::Result<()> {
        let Place::Table(index) = self.place(relation)? else { return Ok(()) };
        let meta = self.next_row(lsn);
        let state = &mut self.tables[index];
        let block = match &mut state.block {
            Some(block) => block,
            empty => empty
                .insert(self.sink.block(&state.table).map_err(|error| encode_failure(&state.table, error))?),
        };
        let before = block.bytes();
        write(block, &state.table, meta).map_err(|error| encode_failure(&state.table, error))?;
        self.batcher.add_row(block.bytes() - before);
        self.rows += 1;
        Ok(())
    }

    #[inline]
    fn insert(&mut self, lsn: Lsn, relation: RelationId, new: Tuple<'_>) -> anyhow::Result<()> {
        self.push(relation, lsn, |block, _, meta| block.push(new.values(), meta))
    }

    fn delete(&mut self, lsn: Lsn, relation: RelationId, old: OldRow<'_>) -> anyhow::Result<()> {
        self.push(relation, lsn, |block, _, meta| block.push_tombstone(old.tuple().values(), meta))
    }

    fn update(
        &mut self,
        lsn: Lsn,
        relation: RelationId,
        old: Option<OldRow<'_>>,
        new: Tuple<'_>,
    ) -> anyhow::Result<()> {
        if let Some(old) = old {
            self.push_old_key(lsn, relation, old.tuple(), new)?;
        }
        self.push(relation, lsn, |block, _, meta| match old {
            Some(OldRow::Full(old)) => block.push(merged(old, new), meta),
            _ => block.push(new.values(), meta),
        })
    }

    /// A tombstone for the old key, where the update changed it; for the old row, where there is no key.
    fn push_old_key(
        &mut self,
        lsn: Lsn,
        relation: RelationId,
        old: Tuple<'_>,
        new: Tuple<'_>,
    ) -> anyhow::Result<()> {
        let Place::Table(index) = self.place(relation)? else { return Ok(()) };
        let table = &self.tables[index].table;
        if table.has_key() && !key_changed(table, old, new) {
            return Ok(());
        }
        self.push(relation, lsn, |block, _, meta| block.push_tombstone(old.values(), meta))
    }

    fn truncate(&mut self, lsn: Lsn, relations: &[RelationId]) -> anyhow::Result<Step> {
        let mut tables = Vec::new();
        for relation in relations {
            if let Place::Table(index) = self.place(*relation)? {
                tables.push(Arc::clone(&self.tables[index].table));
            }
        }
        Ok(if tables.is_empty() { Step::Go } else { Step::Truncate { tables, before: lsn } })
    }

    /// To be called once after each run of messages: brings the shared counters and the clock up to date.
    pub fn settle(&mut self, now: Instant) {
        Counters::add(&self.counters.decoded_rows, std::mem::take(&mut self.rows));
        if self.position.is_some()
            || !self.partials.is_empty()
            || self.tables.iter().any(|state| state.block.is_some())
        {
            self.batcher.touch(now);
        }
    }

    pub fn batcher(&self) -> &Batcher {
        &self.batcher
    }

    /// Takes what has been collected; `None` when that is nothing.
    pub fn take(&mut self) -> Option<Flush<S>> {
        self.batcher.clear();
        let blocks = self.take_blocks();
        let position = self.position.take();
        (!blocks.is_empty() || position.is_some()).then_some(Flush { blocks, position, arrived: None })
    }

    /// Takes the rows that have been collected; the position stays, for they are not all that lie before it.
    pub fn take_blocks(&mut self) -> Vec<(Arc<Table>, S::Block)> {
        let taken = self.tables.iter_mut().filter_map(|state| {
            let mut block = state.block.take()?;
            self.counters.add_replaced(&state.table, block.take_replaced());
            Some((Arc::clone(&state.table), block))
        });
        taken.collect()
    }
}

/// An update whose missing values are not in its old row.
fn lacks_values(old: Option<OldRow<'_>>, new: Tuple<'_>) -> bool {
    new.has_unchanged() && !matches!(old, Some(OldRow::Full(_)))
}

/// The new row, its unchanged TOAST values taken from the old one.
fn merged<'a>(old: Tuple<'a>, new: Tuple<'a>) -> impl Iterator<Item = Value<'a>> {
    new.values().zip(old.values()).map(|(new, old)| if new == Value::Unchanged { old } else { new })
}

fn key_changed(table: &Table, old: Tuple<'_>, new: Tuple<'_>) -> bool {
    let columns = table.columns.iter().zip(old.values().zip(new.values()));
    columns
        .filter(|(column, _)| column.key_position.is_some())
        .any(|(_, (old, new))| new != Value::Unchanged && old != new)
}

fn changed(table: &Table, difference: &str) -> Failure {
    Failure::source(format!("table {table} has changed while it was followed: {difference}"))
        .hint("schema changes cannot be followed yet: load the tables anew into another target.database")
}

pub fn encode_failure(table: &Table, error: EncodeError) -> Failure {
    let hint = match &error {
        EncodeError::Value { error: ValueError::UnchangedToast, .. } => format!(
            "alter table {table} replica identity full: then updates carry the values that they leave alone"
        ),
        EncodeError::Value { .. } => {
            "mend the value in the source, or leave the table out of source.tables".to_owned()
        }
        _ => "leave the table out of source.tables".to_owned(),
    };
    Failure::config(format!("table {table}: {error}")).hint(hint)
}
