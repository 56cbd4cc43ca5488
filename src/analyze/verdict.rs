//! Expectations held against medians, and the run's verdict in a sentence.

use std::collections::BTreeMap;

use super::conservation;
use crate::{
    config::Bounds,
    record::{
        CheckStatus, Expectation, MetricSummary, Outcome,
        outcome::{Exit, ExpectationResult},
    },
};

/// Holds a probe's `expect` against its metrics. Every point of a sweep has to hold.
pub fn judge(probe: &str, expect: &BTreeMap<String, Bounds>, metrics: &[MetricSummary]) -> Vec<Expectation> {
    let of_probe = |m: &&MetricSummary| m.point.get("probe").is_none_or(|name| name == probe);
    let mut judged = Vec::new();
    for (name, bounds) in expect {
        let found: Vec<_> = metrics.iter().filter(|m| m.metric == *name).filter(of_probe).collect();
        judged.extend(found.iter().map(|metric| judge_one(metric, bounds)));
        if found.is_empty() {
            judged.push(missing(probe, name, bounds));
        }
    }
    judged
}

fn missing(probe: &str, name: &str, bounds: &Bounds) -> Expectation {
    Expectation {
        metric: name.to_owned(),
        point: crate::metric::point([("probe", probe)]),
        min: bounds.min,
        max: bounds.max,
        observed: None,
        result: ExpectationResult::Failed,
        detail: "the run has no such metric".to_owned(),
    }
}

fn judge_one(metric: &MetricSummary, bounds: &Bounds) -> Expectation {
    let result = match metric.interval {
        Some(interval) if straddles(interval, bounds) => ExpectationResult::Inconclusive,
        _ if holds(metric.median, bounds) => ExpectationResult::Met,
        _ => ExpectationResult::Failed,
    };
    let detail = match metric.interval {
        Some((low, high)) => format!("median of {}, interval {} to {}", metric.n, brief(low), brief(high)),
        None => format!("median of {}, no interval", metric.n),
    };
    Expectation {
        metric: metric.metric.clone(),
        point: metric.point.clone(),
        min: bounds.min,
        max: bounds.max,
        observed: Some(metric.median),
        result,
        detail,
    }
}

fn brief(value: f64) -> String {
    if value.abs() >= 100.0 || value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}

fn holds(value: f64, bounds: &Bounds) -> bool {
    bounds.min.is_none_or(|min| value >= min) && bounds.max.is_none_or(|max| value <= max)
}

/// A bound lies inside of the interval: one end holds, the other does not.
fn straddles((low, high): (f64, f64), bounds: &Bounds) -> bool {
    bounds.min.is_some_and(|min| low < min && min <= high)
        || bounds.max.is_some_and(|max| low <= max && max < high)
}

/// Metrics of which a single row in any repeat breaks the run, whatever was expected.
const INVARIANTS: [&str; 3] = ["lost_rows", "extra_rows", "differing_rows"];

/// Sets verdict and exit from the rest of the outcome.
pub fn conclude(outcome: &mut Outcome) {
    let broken = broken_rows(outcome);
    let count = |result| outcome.expectations.iter().filter(|e| e.result == result).count();
    let (failed, open) = (count(ExpectationResult::Failed), count(ExpectationResult::Inconclusive));
    let exit = match () {
        () if !broken.is_empty() => Exit::Invariant,
        () if failed > 0 => Exit::Expectation,
        () if open > 0 => Exit::Inconclusive,
        () => Exit::Ok,
    };
    let mut verdict = match exit {
        Exit::Invariant => format!("Broken: {}.", broken.join(", ")),
        Exit::Expectation => format!("Failed: {}.", expectations_in(outcome, ExpectationResult::Failed)),
        Exit::Inconclusive => {
            format!(
                "Inconclusive: the interval straddles the bound of {}.",
                expectations_in(outcome, ExpectationResult::Inconclusive)
            )
        }
        _ => passed_sentence(outcome),
    };
    verdict.push_str(&checks_sentence(outcome));
    (outcome.exit, outcome.verdict) = (exit, verdict);
}

fn broken_rows(outcome: &Outcome) -> Vec<String> {
    let lost = outcome.metrics.iter().filter(|m| INVARIANTS.contains(&m.metric.as_str()) && m.max > 0.0);
    let unbalanced = outcome.checks.iter().filter(|c| c.name == conservation::ROWS && failed(c));
    let mut broken: Vec<String> =
        lost.map(|m| format!("{:.0} {}", m.max, m.metric.replace('_', " "))).collect();
    broken.extend(unbalanced.map(|check| check.detail.clone()));
    broken
}

fn failed(check: &crate::record::Check) -> bool {
    check.status == CheckStatus::Failed
}

fn expectations_in(outcome: &Outcome, result: ExpectationResult) -> String {
    let these = outcome.expectations.iter().filter(|e| e.result == result);
    let described: Vec<String> = these
        .map(|e| {
            let observed = e.observed.map_or_else(|| "missing".to_owned(), brief);
            let min = e.min.map(|min| format!(", at least {} wanted", brief(min)));
            let max = e.max.map(|max| format!(", at most {} wanted", brief(max)));
            format!("{} is {observed}{}{}", e.metric, min.unwrap_or_default(), max.unwrap_or_default())
        })
        .collect();
    described.join("; ")
}

fn passed_sentence(outcome: &Outcome) -> String {
    let verified = outcome.metrics.iter().any(|m| m.metric == "verified_rows" && m.min > 0.0);
    let rows = if verified { "Source and target are equal" } else { "Nothing was verified" };
    match outcome.expectations.len() {
        0 => format!("{rows}; no expectation was set."),
        1 => format!("{rows}; the one expectation is met."),
        n => format!("{rows}; all {n} expectations are met."),
    }
}

fn checks_sentence(outcome: &Outcome) -> String {
    match outcome.checks.iter().filter(|check| failed(check)).count() {
        0 => String::new(),
        1 => " One check of the figures failed: do not rely on them before it is explained.".to_owned(),
        n => format!(" {n} checks of the figures failed: do not rely on them before they are explained."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::{Better, Metric, point};

    fn metric(name: &str, values: &[f64], interval: Option<(f64, f64)>) -> MetricSummary {
        let metric = Metric::new(name, "rows", Better::Neutral);
        MetricSummary::new(&metric, point([("probe", "drain")]), values, interval).unwrap()
    }

    fn outcome(metrics: Vec<MetricSummary>, name: &str, bounds: Bounds) -> Outcome {
        let expect = [(name.to_owned(), bounds)].into();
        let mut outcome =
            Outcome { expectations: judge("drain", &expect, &metrics), metrics, ..Outcome::default() };
        conclude(&mut outcome);
        outcome
    }

    #[test]
    fn an_interval_that_straddles_a_bound_decides_nothing() {
        let (min, max) = (|x| Bounds { min: Some(x), max: None }, |x| Bounds { min: None, max: Some(x) });
        for (interval, bounds, exit) in [
            (Some((90.0, 110.0)), min(80.0), Exit::Ok),
            (Some((90.0, 110.0)), min(95.0), Exit::Inconclusive),
            (Some((90.0, 110.0)), min(105.0), Exit::Inconclusive),
            (Some((90.0, 110.0)), min(120.0), Exit::Expectation),
            (Some((90.0, 110.0)), max(110.0), Exit::Ok),
            (Some((90.0, 110.0)), max(100.0), Exit::Inconclusive),
            (None, min(100.0), Exit::Ok),
            (None, min(100.1), Exit::Expectation),
        ] {
            let outcome = outcome(vec![metric("x", &[100.0], interval)], "x", bounds);
            assert_eq!(outcome.exit, exit, "{interval:?} {bounds:?}: {}", outcome.verdict);
        }
    }

    #[test]
    fn a_row_lost_in_one_repeat_breaks_the_run_though_the_median_is_zero() {
        let bounds = Bounds { min: None, max: Some(0.0) };
        let outcome = outcome(vec![metric("lost_rows", &[0.0, 0.0, 3.0], None)], "lost_rows", bounds);
        assert_eq!((outcome.exit, outcome.verdict.as_str()), (Exit::Invariant, "Broken: 3 lost rows."));
    }

    #[test]
    fn an_expectation_on_a_metric_that_is_not_there_fails() {
        let outcome = outcome(vec![], "typo_rows_per_s", Bounds { min: Some(1.0), max: None });
        assert_eq!(outcome.exit, Exit::Expectation);
        assert!(outcome.verdict.contains("typo_rows_per_s is missing"), "{}", outcome.verdict);
    }

    #[test]
    fn failed_checks_are_said_in_the_verdict() {
        let mut outcome = Outcome { checks: vec![conservation::rows(5.0, 4.0, 0.0)], ..Outcome::default() };
        conclude(&mut outcome);
        assert_eq!(outcome.exit, Exit::Invariant);
        outcome.checks = vec![conservation::arrivals_complete(1.0, 2.0)];
        conclude(&mut outcome);
        assert_eq!(outcome.exit, Exit::Ok);
        assert!(
            outcome.verdict.ends_with("do not rely on them before it is explained."),
            "{}",
            outcome.verdict
        );
    }
}
