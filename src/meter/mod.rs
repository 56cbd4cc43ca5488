//! What is observed while a probe runs, one observable a file, all of the same shape.
//!
//! | module | what |
//! |---|---|
//! | [`slot`] | the source's slot and walsender: bytes behind, lag |
//! | [`clickhouse`] | the target's tables: rows, bytes, parts |
//! | [`process`] | CPU and memory of a process |
//! | [`pipeline`] | our own pipe's counters |
//! | [`load`] | rows written so far |
//! | [`clock`] | how far the servers' clocks are from ours |
//!
//! A meter reads once when asked; periods, files and lateness are the recorder's. Where a connection is lost, the
//! reading fails and the next one connects again.

pub mod clickhouse;
pub mod clock;
pub mod load;
pub mod pipeline;
pub mod process;
pub mod slot;

use std::{pin::Pin, sync::Arc};

use anyhow::Result;
use tokio::sync::Mutex;
use tokio_postgres::Client;

pub use self::{
    clickhouse::TablesMeter,
    clock::{ClockMeter, ClockOffset},
    load::LoadMeter,
    pipeline::PipelineMeter,
    process::ProcessMeter,
    slot::SlotMeter,
};
use crate::{config::SourceEndpoint, metric::Values, postgres::sql_session};

/// Something that can be read again and again.
pub trait Meter: Send + 'static {
    /// What its samples are filed under.
    fn name(&self) -> &str;

    /// One reading. An error is a gap in the samples, no more.
    fn sample(&mut self) -> impl Future<Output = Result<Values>> + Send;
}

/// A reading on its way.
pub type Reading = Pin<Box<dyn Future<Output = Result<Values>> + Send>>;

/// The meter as a function that begins a reading, which is what the recorder's sampler takes. Readings that overlap
/// wait for one another.
pub fn reader<M: Meter>(meter: M) -> impl FnMut() -> Reading + Send + 'static {
    let meter = Arc::new(Mutex::new(meter));
    move || {
        let meter = meter.clone();
        Box::pin(async move { meter.lock().await.sample().await })
    }
}

/// A session of the source that is made when it is needed, and made anew after it was lost.
struct Session {
    endpoint: SourceEndpoint,
    client: Option<Client>,
}

impl Session {
    fn new(endpoint: &SourceEndpoint) -> Self {
        Session { endpoint: endpoint.clone(), client: None }
    }

    async fn client(&mut self) -> Result<&Client> {
        let alive = self.client.take().filter(|client| !client.is_closed());
        let client = match alive {
            Some(client) => client,
            None => sql_session(&self.endpoint, "cdcprobe meter").await?,
        };
        Ok(self.client.insert(client))
    }

    /// What came of a reading; after an error the next one begins with a new session, for a session that the server has
    /// ended may look alive for a moment.
    fn outcome<T>(&mut self, outcome: Result<T>) -> Result<T> {
        outcome.inspect_err(|_| self.client = None)
    }
}

/// Names and numbers, those that are known.
fn values(known: impl IntoIterator<Item = (&'static str, Option<f64>)>) -> Values {
    known.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}
