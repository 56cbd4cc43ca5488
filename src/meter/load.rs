//! The load so far: `rows` and `statements` that the source acknowledged.

use std::sync::Arc;

use anyhow::Result;

use super::{Meter, values};
use crate::{load::LoadCounters, metric::Values};

pub struct LoadMeter {
    counters: Arc<LoadCounters>,
}

impl LoadMeter {
    pub fn new(counters: Arc<LoadCounters>) -> Self {
        LoadMeter { counters }
    }
}

impl Meter for LoadMeter {
    fn name(&self) -> &str {
        "load"
    }

    async fn sample(&mut self) -> Result<Values> {
        Ok(values([
            ("rows", Some(self.counters.rows() as f64)),
            ("statements", Some(self.counters.statements() as f64)),
        ]))
    }
}
