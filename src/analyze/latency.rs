//! Latencies of many intervals as one distribution. Histograms are merged, never averaged; a percentile is given only
//! when at least ten observations lie beyond it.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::record::LatencyInterval;

/// One operation's latencies, microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Latency {
    pub n: u64,
    pub mean_us: f64,
    pub max_us: u64,
    /// `(quantile, microseconds)`, only those that n supports.
    pub quantiles: Vec<(f64, u64)>,
}

/// Merges the histograms of each operation.
pub fn merge<'a>(intervals: impl Iterator<Item = &'a LatencyInterval>) -> BTreeMap<String, Histogram<u64>> {
    let mut merged: BTreeMap<String, Histogram<u64>> = BTreeMap::new();
    for interval in intervals {
        let whole = merged.entry(interval.operation.clone()).or_insert_with(|| {
            let mut empty = Histogram::new(interval.latencies.sigfig()).expect("taken from a histogram");
            empty.auto(true);
            empty
        });
        whole.add(&interval.latencies).expect("a histogram that grows takes any other");
    }
    merged
}

/// Whether n observations support a quantile: n ≥ 10 / (1 - p).
pub fn is_supported(n: u64, p: f64) -> bool {
    n as f64 * (1.0 - p) >= 10.0 - 1e-6
}

/// `None` of no observations.
pub fn summarise(latencies: &Histogram<u64>) -> Option<Latency> {
    let n = latencies.len();
    let supported = [0.5, 0.9, 0.95, 0.99, 0.999].into_iter().filter(|p| is_supported(n, *p));
    (n > 0).then(|| Latency {
        n,
        mean_us: latencies.mean(),
        max_us: latencies.max(),
        quantiles: supported.map(|p| (p, latencies.value_at_quantile(p))).collect(),
    })
}

/// `p50`, `p99`, `p99.9` as `p999`: the end of a metric's name.
pub fn quantile_name(p: f64) -> String {
    format!("p{}", format!("{:.1}", p * 100.0).trim_end_matches(".0").replace('.', ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(operation: &str, values: impl IntoIterator<Item = u64>) -> LatencyInterval {
        let mut latencies = crate::record::histogram::latency_histogram();
        values.into_iter().for_each(|us| latencies.record(us).unwrap());
        LatencyInterval { operation: operation.to_owned(), start_us: 0, end_us: 1, latencies }
    }

    #[test]
    fn ten_observations_must_lie_beyond_a_percentile() {
        for (n, p, supported) in [
            (19, 0.5, false),
            (20, 0.5, true),
            (199, 0.95, false),
            (200, 0.95, true),
            (1000, 0.99, true),
            (999, 0.99, false),
        ] {
            assert_eq!(is_supported(n, p), supported, "{n} {p}");
        }
        let summary = summarise(&interval("x", 1..=199).latencies).unwrap();
        assert_eq!(summary.quantiles.iter().map(|q| quantile_name(q.0)).collect::<Vec<_>>(), ["p50", "p90"]);
        assert_eq!((summary.n, summary.max_us, summary.mean_us.round()), (199, 199, 100.0));
        assert_eq!(quantile_name(0.999), "p999");
    }

    #[test]
    fn merging_keeps_the_tail_that_averaging_would_hide() {
        let intervals = [interval("a", [100; 99]), interval("a", [9_000_000]), interval("b", [1])];
        let merged = merge(intervals.iter());
        assert_eq!((merged["a"].len(), merged["b"].len()), (100, 1));
        assert!(merged["a"].max() >= 9_000_000 && merged["a"].value_at_quantile(0.5) == 100);
        assert_eq!(summarise(&interval("a", []).latencies), None);
    }
}
