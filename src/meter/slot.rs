//! The source's side of a pipe, ours or anybody's: its slot and its walsender.
//!
//! Values: `flush_lsn` (the source's own), `confirmed_lsn`, `restart_lsn`, `confirmed_behind_bytes`,
//! `restart_behind_bytes`, `sent_behind_bytes`, `active` (0 or 1), `walsender_pid`, `wal_status` (0 reserved,
//! 1 extended, 2 unreserved, 3 lost), `write_lag_s`, `flush_lag_s`, `replay_lag_s` as pg_stat_replication has them
//! (PostgreSQL manual, section "The Cumulative Statistics System"). What does not apply now is left out; without the
//! slot only `flush_lsn` is there. An f64 holds an LSN exactly up to 8 PiB of WAL.

use anyhow::{Context, Result};

use super::{Meter, Session};
use crate::{config::SourceEndpoint, metric::Values};

const NAMES: [&str; 12] = [
    "flush_lsn",
    "confirmed_lsn",
    "restart_lsn",
    "confirmed_behind_bytes",
    "restart_behind_bytes",
    "sent_behind_bytes",
    "active",
    "walsender_pid",
    "wal_status",
    "write_lag_s",
    "flush_lag_s",
    "replay_lag_s",
];

pub struct SlotMeter {
    name: String,
    slot: String,
    session: Session,
}

impl SlotMeter {
    /// Reads slot `slot`; samples go under `name`. Connects at the first reading.
    pub fn new(name: &str, source: &SourceEndpoint, slot: &str) -> Self {
        SlotMeter { name: name.to_owned(), slot: slot.to_owned(), session: Session::new(source) }
    }

    async fn read(&mut self) -> Result<Values> {
        let client = self.session.client().await?;
        let row = client.query_one(include_str!("sql/slot.sql"), &[&self.slot]).await;
        let row = row.with_context(|| format!("read slot {}", self.slot))?;
        let mut values = Values::new();
        for name in NAMES {
            if let Some(value) = row.try_get::<_, Option<f64>>(name)? {
                values.insert(name.to_owned(), value);
            }
        }
        Ok(values)
    }
}

impl Meter for SlotMeter {
    fn name(&self) -> &str {
        &self.name
    }

    async fn sample(&mut self) -> Result<Values> {
        let outcome = self.read().await;
        self.session.outcome(outcome)
    }
}
