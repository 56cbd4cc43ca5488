//! What a comparison found.

use std::time::Duration;

use serde::Serialize;

use crate::config::TableName;

/// All tables' findings.
#[derive(Clone, Debug, Default, Serialize)]
pub struct VerifyReport {
    pub tables: Vec<TableReport>,
    pub elapsed: Duration,
}

impl VerifyReport {
    /// Source rows whose every column the target has as it is.
    pub fn verified_rows(&self) -> u64 {
        self.sum(|table| table.verified_rows)
    }

    pub fn lost_rows(&self) -> u64 {
        self.sum(|table| table.lost_rows)
    }

    pub fn extra_rows(&self) -> u64 {
        self.sum(|table| table.extra_rows)
    }

    pub fn differing_rows(&self) -> u64 {
        self.sum(|table| table.differing_rows)
    }

    /// No row is lost, extra or differing.
    pub fn is_clean(&self) -> bool {
        self.lost_rows() + self.extra_rows() + self.differing_rows() == 0
    }

    fn sum(&self, of: impl Fn(&TableReport) -> u64) -> u64 {
        self.tables.iter().map(of).sum()
    }
}

/// One table's findings. The counts are exact; `examples` are the first few of each kind and range.
#[derive(Clone, Debug, Serialize)]
pub struct TableReport {
    pub source: TableName,
    /// `database.table`.
    pub target: String,
    /// Source rows equal in the target.
    pub verified_rows: u64,
    /// Source rows whose key the target does not have.
    pub lost_rows: u64,
    /// Target rows whose key the source does not have, or which repeat a key.
    pub extra_rows: u64,
    /// Rows of the same key with at least one column that differs.
    pub differing_rows: u64,
    pub examples: Vec<Difference>,
}

/// One row that is not the same on both sides. Keys and values are the texts compared, long ones shortened.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Difference {
    Lost { key: Vec<String> },
    Extra { key: Vec<String> },
    Differing { key: Vec<String>, values: Vec<DifferingValue> },
}

/// A column's two values; `None` is NULL.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DifferingValue {
    pub column: String,
    pub source: Option<String>,
    pub target: Option<String>,
}

/// Counts and examples of one range, added up table by table.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub verified: u64,
    pub lost: u64,
    pub extra: u64,
    pub differing: u64,
    pub examples: Vec<Difference>,
}

impl Tally {
    /// Adds `other`, keeping at most `max_examples` of each kind.
    pub fn add(&mut self, other: Tally, max_examples: usize) {
        self.verified += other.verified;
        self.lost += other.lost;
        self.extra += other.extra;
        self.differing += other.differing;
        for example in other.examples {
            self.keep(example, max_examples);
        }
    }

    pub fn keep(&mut self, example: Difference, max_examples: usize) {
        let kind = std::mem::discriminant(&example);
        if self.examples.iter().filter(|known| std::mem::discriminant(*known) == kind).count() < max_examples
        {
            self.examples.push(example);
        }
    }
}
