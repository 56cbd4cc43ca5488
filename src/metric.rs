//! Names of what is measured, and single measurements.

use serde::{Deserialize, Serialize};

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
    pub values: std::collections::BTreeMap<String, f64>,
}
