//! Names of what is measured, and single measurements.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Where in a sweep a figure was taken, and of what: `{workers: "4"}`, `{process: "pipe"}`. Empty: the whole probe.
pub type Point = BTreeMap<String, String>;

/// What one reading of a meter holds, by name; each name ends in its unit.
pub type Values = BTreeMap<String, f64>;

/// A point from its labels.
pub fn point<const N: usize>(labels: [(&str, &str); N]) -> Point {
    labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// Which way is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    Higher,
    Lower,
    /// A fact, neither good nor bad.
    Neutral,
}

/// A measured quantity: its name ends in its unit (`drain_rows_per_s`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metric {
    pub name: String,
    pub unit: String,
    pub better: Better,
}

impl Metric {
    pub fn new(name: &str, unit: &str, better: Better) -> Self {
        Metric { name: name.to_owned(), unit: unit.to_owned(), better }
    }
}

/// What one meter read at one instant. `t_us` counts from the run's start on the monotonic clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub t_us: u64,
    pub meter: String,
    pub values: Values,
}
