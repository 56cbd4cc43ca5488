//! How a table is cut into ranges of its first key column, which are compared on their own and in parallel.
//!
//! The cuts are quantiles of a sample of the source's pages, so that ranges hold about as many rows each, however the
//! keys are spread. They only balance the work: every row lies in exactly one range whatever the cuts are.

use anyhow::{Context, Result};
use tokio_postgres::Client;

use super::projection::{Bound, Projection};
use crate::{postgres::quote, sink::clickhouse::quote::literal as target_literal};

/// Source bytes of a range: small enough for the target to sort in memory, large enough for its set-up to vanish.
const RANGE_BYTES: i64 = 64 << 20;
/// Pages in the sample.
const SAMPLE_PAGES: f64 = 1000.0;
const MAX_RANGES: i64 = 1000;

/// A range's conditions, one for each side; empty for the whole table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Range {
    pub source: String,
    pub target: String,
}

/// Ranges of a table in key order. `table` is quoted; `first` is the first column of its key.
pub async fn plan(client: &Client, table: &str, first: &Projection, workers: usize) -> Result<Vec<Range>> {
    let Some(bound) = first.bound else { return Ok(vec![Range::default()]) };
    let size = client.query_one(include_str!("sql/size.sql"), &[&table]).await;
    let size = size.with_context(|| format!("read the size of {table}"))?;
    let (bytes, pages): (i64, i64) = (size.try_get("bytes")?, size.try_get("pages")?);
    let count = range_count(bytes, workers);
    if count < 2 {
        return Ok(vec![Range::default()]);
    }
    let percent = (100.0 * SAMPLE_PAGES / pages as f64).min(100.0);
    let fractions: Vec<f64> = (1..count).map(|cut| cut as f64 / count as f64).collect();
    let key = &first.source_order;
    let sql = format!(
        "select (percentile_disc($1::float8[]) within group (order by {key}))::text[]
         from {table} tablesample system ({percent}) repeatable (1)"
    );
    let row = client.query_one(&sql, &[&fractions]).await;
    let row = row.with_context(|| format!("sample the keys of {table}"))?;
    let cuts = row.try_get::<_, Option<Vec<Option<String>>>>(0)?.unwrap_or_default();
    let mut cuts: Vec<String> = cuts.into_iter().flatten().collect();
    cuts.dedup();
    Ok(between(&cuts, first, bound))
}

/// Enough to keep the workers busy to the end, and no range too large.
fn range_count(bytes: i64, workers: usize) -> i64 {
    const SMALL: i64 = 8 << 20;
    if bytes < SMALL {
        return 1;
    }
    (bytes / RANGE_BYTES + 1).max(workers as i64).min(MAX_RANGES)
}

/// The ranges below, between and above the cuts, which ascend.
fn between(cuts: &[String], first: &Projection, bound: Bound) -> Vec<Range> {
    let source = |cut: &String| match bound {
        Bound::Number => cut.clone(),
        Bound::Text => quote::literal(cut),
        Bound::Uuid => format!("{}::uuid", quote::literal(cut)),
    };
    let target = |cut: &String| match bound {
        Bound::Number => cut.clone(),
        Bound::Text | Bound::Uuid => target_literal(cut),
    };
    (0..=cuts.len())
        .map(|index| {
            let (from, to) = (index.checked_sub(1).map(|from| &cuts[from]), cuts.get(index));
            Range {
                source: condition(&first.source_order, from.map(source), to.map(source)),
                target: condition(&first.target_order, from.map(target), to.map(target)),
            }
        })
        .collect()
}

fn condition(key: &str, from: Option<String>, to: Option<String>) -> String {
    let from = from.map(|from| format!("{key} >= {from}"));
    let to = to.map(|to| format!("{key} < {to}"));
    from.into_iter().chain(to).collect::<Vec<_>>().join(" AND ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        change::BaseType,
        verify::{
            catalog::Column,
            projection::{TargetColumn, project},
        },
    };

    fn first(type_oid: u32, type_name: &str) -> Projection {
        let column = Column { name: "k".to_owned(), base: BaseType::scalar(type_oid, -1) };
        project(&column, TargetColumn { name: "k", type_name, is_null_companion: None }).expect("comparable")
    }

    #[test]
    fn ranges_cover_everything_once() {
        let key = first(20, "Int64");
        let cuts = ["-5".to_owned(), "10".to_owned()];
        let ranges = between(&cuts, &key, Bound::Number);
        let source: Vec<&str> = ranges.iter().map(|range| range.source.as_str()).collect();
        assert_eq!(source, ["\"k\" < -5", "\"k\" >= -5 AND \"k\" < 10", "\"k\" >= 10"]);
        assert_eq!(ranges[1].target, "`k` >= -5 AND `k` < 10");
        assert_eq!(between(&[], &key, Bound::Number), [Range::default()]);
    }

    #[test]
    fn texts_are_cut_bytewise_on_both_sides() {
        let ranges = between(&["o'b".to_owned()], &first(25, "String"), Bound::Text);
        assert_eq!(ranges[0].source, "\"k\" collate \"C\" < 'o''b'");
        assert_eq!(ranges[0].target, "`k` < 'o\\'b'");
        let ranges = between(&["00".to_owned()], &first(2950, "UUID"), Bound::Uuid);
        assert_eq!(ranges[1].source, "\"k\" >= '00'::uuid");
        assert_eq!(ranges[1].target, "toString(`k`) >= '00'");
    }

    #[test]
    fn small_tables_are_one_range() {
        assert_eq!(range_count(1 << 20, 4), 1);
        assert_eq!(range_count(10 << 20, 4), 4);
        assert_eq!(range_count(1 << 30, 4), 17);
        assert_eq!(range_count(i64::MAX, 4), MAX_RANGES);
    }
}
