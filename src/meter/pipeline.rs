//! Our own pipe, by its counters.
//!
//! Values, all since the pipe's start unless they say where it is now: `received_bytes`, `decoded_rows`,
//! `durable_rows`, `durable_blocks`, `retries`, `replaced_values`, `in_flight_blocks`, `buffered_bytes`, `nap_s`, `source_wait_s`,
//! `sink_wait_s`, `decoded_lsn`, `durable_lsn`, `durable_commit_unix_s` (absent before the first durable commit).

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use anyhow::Result;

use super::{Meter, values};
use crate::{metric::Values, pipeline::Counters};

pub struct PipelineMeter {
    name: String,
    counters: Arc<Counters>,
}

impl PipelineMeter {
    /// Samples go under `name`.
    pub fn new(name: &str, counters: Arc<Counters>) -> Self {
        PipelineMeter { name: name.to_owned(), counters }
    }

    fn read(&self) -> Values {
        let counters = &self.counters;
        let count = |counter: &AtomicU64| Some(counter.load(Relaxed) as f64);
        let seconds = |micros: &AtomicU64| Some(micros.load(Relaxed) as f64 / 1e6);
        let committed = counters.durable_commit_time().map(|time| time.unix_micros() as f64 / 1e6);
        values([
            ("received_bytes", count(&counters.received_bytes)),
            ("decoded_rows", count(&counters.decoded_rows)),
            ("durable_rows", count(&counters.durable_rows)),
            ("durable_blocks", count(&counters.durable_blocks)),
            ("retries", count(&counters.retries)),
            ("replaced_values", Some(counters.replaced().values().sum::<u64>() as f64)),
            ("in_flight_blocks", count(&counters.in_flight_blocks)),
            ("buffered_bytes", count(&counters.buffered_bytes)),
            ("nap_s", seconds(&counters.nap_us)),
            ("source_wait_s", seconds(&counters.source_wait_us)),
            ("sink_wait_s", seconds(&counters.sink_wait_us)),
            ("decoded_lsn", Some(counters.decoded_lsn().0 as f64)),
            ("durable_lsn", Some(counters.durable_lsn().0 as f64)),
            ("durable_commit_unix_s", committed),
        ])
    }
}

impl Meter for PipelineMeter {
    fn name(&self) -> &str {
        &self.name
    }

    async fn sample(&mut self) -> Result<Values> {
        Ok(self.read())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{Lsn, PgMicros};

    #[tokio::test]
    async fn reads_what_the_pipe_counted() {
        let counters = Arc::new(Counters::default());
        let mut meter = PipelineMeter::new("pipe", counters.clone());
        assert!(!meter.sample().await.unwrap().contains_key("durable_commit_unix_s"));
        counters.arrived(100, 20_000);
        Counters::add(&counters.nap_us, 1_500_000);
        counters.set_durable(Lsn(7), Some(PgMicros::from_unix_micros(1_700_000_000_500_000)));
        let values = meter.sample().await.unwrap();
        for (name, value) in [
            ("durable_rows", 100.0),
            ("durable_blocks", 1.0),
            ("nap_s", 1.5),
            ("durable_lsn", 7.0),
            ("durable_commit_unix_s", 1_700_000_000.5),
        ] {
            assert_eq!(values[name], value, "{name}");
        }
    }
}
