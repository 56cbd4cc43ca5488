//! The merge of two streams of rows in key order: what is equal, lost, extra, differing.
//!
//! A row is one escaped, tab-separated line. Nearly all lines are byte for byte the same on both sides; only where two
//! differ are they taken apart.

use std::{borrow::Cow, cmp::Ordering};

use bytes::Bytes;

use super::{
    field::{Field, same, unescape},
    lines::LineBuffer,
    order::{KeyOrder, float},
    report::{Difference, DifferingValue, Tally},
};

/// Characters of a value that an example shows.
const SHOWN: usize = 200;

/// The columns of both sides' lines, in their order.
#[derive(Clone, Debug)]
pub struct Layout {
    pub columns: Vec<ColumnLayout>,
    /// Columns of the key by index, in the order that the rows are sorted by.
    pub key: Vec<(usize, KeyOrder)>,
    /// Columns by which people know a row.
    pub shown: Vec<usize>,
}

#[derive(Clone, Debug)]
pub struct ColumnLayout {
    pub name: String,
    /// Lines hold the bits of a float, in hexadecimal; people are shown the number.
    pub is_float: bool,
}

/// One range's merge. Lines are pushed as they come; nothing is kept of rows that were compared.
pub(super) struct Merge<'a> {
    layout: &'a Layout,
    max_examples: usize,
    pub source: Side,
    pub target: Side,
    pub tally: Tally,
}

/// One stream: its lines, the next of them, and whether it has ended.
#[derive(Default)]
pub(super) struct Side {
    pub lines: LineBuffer,
    next: Option<Bytes>,
    pub ended: bool,
}

impl Side {
    /// Whether more must be pushed before the next line is known.
    fn is_starved(&mut self) -> bool {
        if self.next.is_none() {
            self.next = self.lines.next_line();
        }
        self.next.is_none() && !self.ended
    }
}

/// What the merge waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    Source,
    Target,
    Nothing,
}

impl<'a> Merge<'a> {
    pub fn new(layout: &'a Layout, max_examples: usize) -> Self {
        Merge {
            layout,
            max_examples,
            source: Side::default(),
            target: Side::default(),
            tally: Tally::default(),
        }
    }

    /// Compares as far as the lines reach. `Nothing` when both sides have ended and all is compared.
    pub fn advance(&mut self) -> Needs {
        loop {
            if self.source.is_starved() {
                return Needs::Source;
            }
            if self.target.is_starved() {
                return Needs::Target;
            }
            match (self.source.next.take(), self.target.next.take()) {
                (None, None) => return Needs::Nothing,
                (Some(source), None) => self.lost(&source),
                (None, Some(target)) => self.extra(&target),
                (Some(source), Some(target)) if source == target => self.tally.verified += 1,
                (Some(source), Some(target)) => self.unequal(source, target),
            }
        }
    }

    fn unequal(&mut self, source: Bytes, target: Bytes) {
        let (source_fields, target_fields) = (fields(&source), fields(&target));
        match self.compare_keys(&source_fields, &target_fields) {
            Ordering::Less => {
                self.lost(&source);
                self.target.next = Some(target);
            }
            Ordering::Greater => {
                self.extra(&target);
                self.source.next = Some(source);
            }
            Ordering::Equal => self.same_key(&source_fields, &target_fields),
        }
    }

    fn compare_keys(&self, source: &[&[u8]], target: &[&[u8]]) -> Ordering {
        let texts = |fields: &[&[u8]], index: usize| text(fields, index).map(Cow::into_owned);
        self.layout
            .key
            .iter()
            .map(|&(index, order)| match (texts(source, index), texts(target, index)) {
                (Some(source), Some(target)) => order.compare(&source, &target),
                // Keys are not null; a target that made one so sorts it last.
                (source, target) => source.is_none().cmp(&target.is_none()),
            })
            .find(|order| order.is_ne())
            .unwrap_or(Ordering::Equal)
    }

    fn same_key(&mut self, source: &[&[u8]], target: &[&[u8]]) {
        let columns = self.layout.columns.len();
        let differs = |&index: &usize| match (source.get(index), target.get(index)) {
            (Some(source), Some(target)) => !same(source, target),
            _ => true,
        };
        let differing: Vec<usize> = (0..columns).filter(differs).collect();
        if differing.is_empty() {
            self.tally.verified += 1;
            return;
        }
        self.tally.differing += 1;
        let value = |index: usize| {
            let column = &self.layout.columns[index];
            DifferingValue {
                column: column.name.clone(),
                source: shown(text(source, index), column.is_float),
                target: shown(text(target, index), column.is_float),
            }
        };
        let values = differing.into_iter().map(value).collect();
        self.keep(Difference::Differing { key: self.key(source), values });
    }

    fn lost(&mut self, source: &Bytes) {
        self.tally.lost += 1;
        self.keep(Difference::Lost { key: self.key(&fields(source)) });
    }

    fn extra(&mut self, target: &Bytes) {
        self.tally.extra += 1;
        self.keep(Difference::Extra { key: self.key(&fields(target)) });
    }

    fn keep(&mut self, example: Difference) {
        self.tally.keep(example, self.max_examples);
    }

    fn key(&self, fields: &[&[u8]]) -> Vec<String> {
        let part = |&index: &usize| {
            let is_float = self.layout.columns[index].is_float;
            shown(text(fields, index), is_float).unwrap_or_else(|| "NULL".to_owned())
        };
        self.layout.shown.iter().map(part).collect()
    }
}

fn fields(line: &[u8]) -> Vec<&[u8]> {
    line.split(|&byte| byte == b'\t').collect()
}

fn text<'a>(fields: &[&'a [u8]], index: usize) -> Field<'a> {
    fields.get(index).and_then(|raw| unescape(raw))
}

/// For people: the number of a float's bits, long values cut with a word on their length.
fn shown(field: Field<'_>, is_float: bool) -> Option<String> {
    let bytes = field?;
    if is_float && bytes.as_ref() != b"NaN" {
        return Some(float(&bytes).to_string());
    }
    let text = String::from_utf8_lossy(&bytes);
    match text.char_indices().nth(SHOWN) {
        Some((cut, _)) => Some(format!("{}… ({} bytes)", &text[..cut], bytes.len())),
        None => Some(text.into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        let column = |name: &str, is_float| ColumnLayout { name: name.to_owned(), is_float };
        let columns = vec![column("id", false), column("name", false), column("size", true)];
        Layout { columns, key: vec![(0, KeyOrder::Integer)], shown: vec![0] }
    }

    /// Merges two whole texts, pushed in pieces of `step` bytes.
    fn merged(source: &str, target: &str, step: usize) -> Tally {
        let layout = layout();
        let mut merge = Merge::new(&layout, 10);
        let mut source = source.as_bytes().chunks(step);
        let mut target = target.as_bytes().chunks(step);
        loop {
            let (side, chunks) = match merge.advance() {
                Needs::Nothing => return merge.tally,
                Needs::Source => (&mut merge.source, &mut source),
                Needs::Target => (&mut merge.target, &mut target),
            };
            match chunks.next() {
                Some(chunk) => side.lines.push(Bytes::copy_from_slice(chunk)),
                None => side.ended = true,
            }
        }
    }

    /// Id and name.
    type Rows = &'static [(i32, &'static str)];

    fn counts(tally: &Tally) -> [u64; 4] {
        [tally.verified, tally.lost, tally.extra, tally.differing]
    }

    #[test]
    fn every_kind_of_difference_is_counted() {
        const ONE: &str = "3ff0000000000000";
        let row = |id: i32, name: &str| format!("{id}\t{name}\t{ONE}\n");
        let cases: &[(Rows, Rows, [u64; 4])] = &[
            (&[], &[], [0, 0, 0, 0]),
            (&[(9, "a"), (10, "b")], &[(9, "a"), (10, "b")], [2, 0, 0, 0]),
            (&[(9, "a"), (10, "b")], &[(10, "b")], [1, 1, 0, 0]),
            (&[(9, "a"), (10, "b")], &[(9, "a")], [1, 1, 0, 0]),
            (&[(10, "b")], &[(9, "a"), (10, "b"), (11, "c")], [1, 0, 2, 0]),
            (&[(9, "a"), (11, "b")], &[(9, "a"), (10, "b")], [1, 1, 1, 0]),
            (&[(9, "a")], &[(9, "b")], [0, 0, 0, 1]),
            (&[(9, "a")], &[(9, "a"), (9, "a")], [1, 0, 1, 0]),
            (&[(9, "")], &[(9, "\\N")], [0, 0, 0, 1]),
            (&[(9, "it's")], &[(9, "it\\'s")], [1, 0, 0, 0]),
            (&[], &[(1, "a"), (2, "a")], [0, 0, 2, 0]),
        ];
        for (source, target, expected) in cases {
            let text =
                |rows: &[(i32, &str)]| rows.iter().map(|(id, name)| row(*id, name)).collect::<String>();
            for step in [1, 7, 1000] {
                assert_eq!(
                    counts(&merged(&text(source), &text(target), step)),
                    *expected,
                    "{source:?} {target:?}"
                );
            }
        }
    }

    #[test]
    fn a_difference_names_key_column_and_both_values() {
        let tally = merged("7\ta\t3ff8000000000000\n", "7\t\\N\t8000000000000000\n", 100);
        let value = |column: &str, source: Option<&str>, target: Option<&str>| DifferingValue {
            column: column.to_owned(),
            source: source.map(str::to_owned),
            target: target.map(str::to_owned),
        };
        let values = vec![value("name", Some("a"), None), value("size", Some("1.5"), Some("-0"))];
        assert_eq!(tally.examples, [Difference::Differing { key: vec!["7".to_owned()], values }]);
    }

    #[test]
    fn a_missing_field_is_a_difference_and_no_panic() {
        assert_eq!(counts(&merged("7\ta\n", "7\n", 100)), [0, 0, 0, 1]);
    }

    #[test]
    fn examples_are_bounded_by_kind() {
        let rows: String = (0..100).map(|id| format!("{id}\ta\tNaN\n")).collect();
        let tally = merged(&rows, "200\ta\tNaN\n", 64);
        assert_eq!((tally.lost, tally.extra, tally.examples.len()), (100, 1, 11));
    }
}
