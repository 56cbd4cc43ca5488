//! Which worker copies what: tables cut into ctid ranges of about equal size. Pure.

/// Blocks `start..end` of a table; the last range of a table is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// Index of the table in the list that was planned.
    pub table: usize,
    pub start: u64,
    pub end: Option<u64>,
}

/// Ranges for every worker, so that the last one to finish is not far behind the others.
const RANGES_PER_WORKER: u64 = 8;
/// 8 MiB: below this a range's fixed cost shows.
const MIN_BLOCKS: u64 = 1024;

/// Cuts tables of `blocks` blocks each into ranges for `workers` workers, in table order.
pub fn plan(blocks: &[u64], workers: u32) -> Vec<BlockRange> {
    let total: u64 = blocks.iter().sum();
    let size = (total / (u64::from(workers.max(1)) * RANGES_PER_WORKER)).max(MIN_BLOCKS);
    let ranges = |(table, &blocks): (usize, &u64)| {
        let count = (blocks / size).max(1);
        (0..count).map(move |index| BlockRange {
            table,
            start: index * blocks / count,
            end: (index + 1 < count).then_some((index + 1) * blocks / count),
        })
    };
    blocks.iter().enumerate().flat_map(ranges).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn small_tables_are_one_range() {
        let whole = |table| BlockRange { table, start: 0, end: None };
        assert_eq!(plan(&[0, 1, 1500], 4), [whole(0), whole(1), whole(2)]);
    }

    proptest! {
        #[test]
        fn every_block_is_in_exactly_one_range(blocks in proptest::collection::vec(0u64..1_000_000, 1..8), workers in 1u32..64) {
            let ranges = plan(&blocks, workers);
            for table in 0..blocks.len() {
                let of_table: Vec<_> = ranges.iter().filter(|range| range.table == table).collect();
                prop_assert_eq!(of_table[0].start, 0);
                prop_assert_eq!(of_table[of_table.len() - 1].end, None);
                for pair in of_table.windows(2) {
                    prop_assert_eq!(pair[0].end, Some(pair[1].start));
                    prop_assert!(pair[0].start < pair[1].start);
                }
            }
        }

        #[test]
        fn no_range_is_much_larger_than_another(blocks in 100_000u64..10_000_000, workers in 1u32..64) {
            let ranges = plan(&[blocks], workers);
            let length = |range: &BlockRange| range.end.unwrap_or(blocks) - range.start;
            let longest = ranges.iter().map(length).max().unwrap_or(0);
            let shortest = ranges.iter().map(length).min().unwrap_or(0);
            prop_assert!(longest <= shortest + 1);
        }
    }
}
