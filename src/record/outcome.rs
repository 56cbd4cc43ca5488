//! `outcome.json`: the figures of a run, whether its arithmetic holds, and the verdict. Schema: docs/outcome.schema.json.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::manifest::FORMAT_VERSION;
use crate::metric::{Better, Metric, Point};

/// What a run found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub format_version: u32,
    pub metrics: Vec<MetricSummary>,
    /// What makes a figure less trustworthy, in sentences.
    #[serde(default)]
    pub warnings: Vec<String>,
    #[serde(default)]
    pub checks: Vec<Check>,
    #[serde(default)]
    pub expectations: Vec<Expectation>,
    /// What limits the figures, in sentences, from measured evidence.
    #[serde(default)]
    pub limits: Vec<String>,
    /// One sentence.
    pub verdict: String,
    pub exit: Exit,
}

impl Default for Outcome {
    fn default() -> Self {
        Outcome {
            format_version: FORMAT_VERSION,
            metrics: Vec::new(),
            warnings: Vec::new(),
            checks: Vec::new(),
            expectations: Vec::new(),
            limits: Vec::new(),
            verdict: String::new(),
            exit: Exit::Ok,
        }
    }
}

impl Outcome {
    /// The summary of a metric at a point; the first one, whatever its point, when `point` is `None`.
    pub fn metric(&self, name: &str, point: Option<&Point>) -> Option<&MetricSummary> {
        self.metrics.iter().find(|m| m.metric == name && point.is_none_or(|p| *p == m.point))
    }

    /// Adds another probe's findings. Verdict and exit stay: they are made from the whole.
    pub fn absorb(&mut self, other: Outcome) {
        self.metrics.extend(other.metrics);
        self.warnings.extend(other.warnings);
        self.checks.extend(other.checks);
        self.expectations.extend(other.expectations);
        self.limits.extend(other.limits);
    }
}

/// What the process's exit code says of the run; the codes are in `failure::Kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    Ok,
    /// An expectation failed.
    Expectation,
    /// Rows lost, doubled or differing, or a conservation check of rows failed.
    Invariant,
    /// An interval straddles a threshold.
    Inconclusive,
    Interrupted,
}

impl Exit {
    pub fn failure(self) -> Option<crate::failure::Kind> {
        use crate::failure::Kind;
        match self {
            Exit::Ok => None,
            Exit::Expectation => Some(Kind::Expectation),
            Exit::Invariant => Some(Kind::Invariant),
            Exit::Inconclusive => Some(Kind::Inconclusive),
            Exit::Interrupted => Some(Kind::Interrupted),
        }
    }
}

/// One metric at one point, over the repeats.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricSummary {
    pub metric: String,
    pub unit: String,
    pub better: Better,
    /// Repeats.
    pub n: usize,
    pub min: f64,
    pub median: f64,
    pub max: f64,
    #[serde(default)]
    pub point: Point,
    /// 95 % confidence interval of the median; how it was made is in docs/measuring.md.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<(f64, f64)>,
    /// The repeats' values in order, so that drift can be seen.
    #[serde(default)]
    pub values: Vec<f64>,
}

impl MetricSummary {
    /// `None` when no value is finite; values that are not are left out.
    pub fn new(metric: &Metric, point: Point, values: &[f64], interval: Option<(f64, f64)>) -> Option<Self> {
        let values: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        let mut sorted = values.clone();
        sorted.sort_by(f64::total_cmp);
        Some(MetricSummary {
            metric: metric.name.clone(),
            unit: metric.unit.clone(),
            better: metric.better,
            n: sorted.len(),
            min: *sorted.first()?,
            median: median_of_sorted(&sorted),
            max: *sorted.last()?,
            point,
            interval: interval.filter(|(low, high)| low.is_finite() && high.is_finite()),
            values,
        })
    }
}

fn median_of_sorted(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// A conservation check: two ways to the same number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    pub name: String,
    /// Of which repeat: `drain, repeat 1`.
    #[serde(default)]
    pub scope: String,
    pub status: CheckStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed: Option<f64>,
    /// Largest |observed - expected| that passes, in their unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tolerance: Option<f64>,
    /// What the two numbers are, or why there are none.
    pub detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckStatus {
    Passed,
    Failed,
    NotApplicable,
}

impl fmt::Display for CheckStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            CheckStatus::Passed => "passed",
            CheckStatus::Failed => "failed",
            CheckStatus::NotApplicable => "not applicable",
        })
    }
}

/// An `expect` of the pipeline file, held against the median.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expectation {
    pub metric: String,
    #[serde(default)]
    pub point: Point,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    /// The median; `None`: the run has no such metric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed: Option<f64>,
    pub result: ExpectationResult,
    pub detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpectationResult {
    Met,
    Failed,
    /// The interval straddles the bound.
    Inconclusive,
}

impl fmt::Display for ExpectationResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ExpectationResult::Met => "met",
            ExpectationResult::Failed => "failed",
            ExpectationResult::Inconclusive => "inconclusive",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(values: &[f64]) -> Option<MetricSummary> {
        MetricSummary::new(
            &Metric::new("x_s", "s", Better::Lower),
            Point::new(),
            values,
            Some((f64::NAN, 1.0)),
        )
    }

    #[test]
    fn summarises_the_repeats() {
        for (values, min, median, max) in [
            (&[3.0][..], 3.0, 3.0, 3.0),
            (&[4.0, 1.0], 1.0, 2.5, 4.0),
            (&[9.0, f64::NAN, 1.0, 2.0], 1.0, 2.0, 9.0),
        ] {
            let s = summary(values).unwrap();
            assert_eq!((s.min, s.median, s.max), (min, median, max));
            assert_eq!(s.interval, None);
        }
        assert_eq!(summary(&[9.0, f64::NAN, 1.0]).unwrap().values, [9.0, 1.0]);
        assert_eq!(summary(&[f64::INFINITY]), None);
    }
}
