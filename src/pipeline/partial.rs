//! Rows that lack unchanged TOAST values, kept until the target can be asked for them. Pure.
//!
//! The values lie in the target, in the row of the old key as it was just before the update. They are read there once
//! everything before is durable, and before anything later that touches one of the keys is sent: such a change makes the
//! pipe resolve what waits first. Rows that do not touch one another's keys wait together.

use std::collections::HashSet;

use crate::sink::PartialRow;

/// Rows wait together up to this many, so that a lookup's queries stay small.
const MOST_ROWS: usize = 2_000;

/// The rows of one session that wait, table by table.
#[derive(Debug, Default)]
pub struct Partials {
    tables: Vec<Waiting>,
    rows: usize,
}

/// One table's.
#[derive(Debug, Default)]
struct Waiting {
    rows: Vec<PartialRow>,
    keys: HashSet<Vec<u8>>,
}

impl Partials {
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    pub fn is_full(&self) -> bool {
        self.rows >= MOST_ROWS
    }

    /// Rows of this table wait.
    #[inline]
    pub fn has_rows_of(&self, table: usize) -> bool {
        self.rows > 0 && self.tables.get(table).is_some_and(|waiting| !waiting.rows.is_empty())
    }

    /// A row with this key, old or new, waits.
    pub fn touches(&self, table: usize, key: &[u8]) -> bool {
        self.tables.get(table).is_some_and(|waiting| waiting.keys.contains(key))
    }

    /// The caller has seen that neither key is touched by a row that waits.
    pub fn add(&mut self, table: usize, row: PartialRow) {
        if self.tables.len() <= table {
            self.tables.resize_with(table + 1, Waiting::default);
        }
        let waiting = &mut self.tables[table];
        waiting.keys.insert(row.old_key.clone());
        waiting.keys.insert(row.new_key.clone());
        waiting.rows.push(row);
        self.rows += 1;
    }

    /// All rows that wait, by table.
    pub fn take(&mut self) -> Vec<(usize, Vec<PartialRow>)> {
        self.rows = 0;
        let tables = std::mem::take(&mut self.tables).into_iter().enumerate();
        tables.map(|(table, waiting)| (table, waiting.rows)).filter(|(_, rows)| !rows.is_empty()).collect()
    }
}
