//! How far a server's clock is ahead of this machine's: `offset_s`, known to within `error_s`.
//!
//! The server's clock is read between two readings of ours; it was read somewhere between them, so half the round trip
//! bounds the error, and the quickest of several round trips bounds it best (Cristian's method). The midpoint is right
//! when both ways take equally long.

use anyhow::{Context, Result};
use tokio_postgres::Client as Source;

use super::{Meter, Session, values};
use crate::{config::SourceEndpoint, metric::Values, units::PgMicros};

/// Round trips of one measurement.
const ROUND_TRIPS: usize = 15;

/// Microseconds. The server's clock minus ours is `offset_us`, give or take `error_us`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockOffset {
    pub offset_us: i64,
    pub error_us: i64,
}

/// One round trip, in microseconds since 1970: ours before, the server's, ours after.
#[derive(Clone, Copy, Debug)]
struct RoundTrip {
    sent: i64,
    server: i64,
    received: i64,
}

impl ClockOffset {
    /// Of the source, by `clock_timestamp()`.
    pub async fn of_source(client: &Source) -> Result<ClockOffset> {
        let sql = "select (extract(epoch from clock_timestamp()) * 1000000)::int8";
        let statement = client.prepare(sql).await.context("prepare to read the source's clock")?;
        let mut trips = Vec::with_capacity(ROUND_TRIPS);
        for _ in 0..ROUND_TRIPS {
            let sent = now();
            let row = client.query_one(&statement, &[]).await.context("read the source's clock")?;
            trips.push(RoundTrip { sent, server: row.try_get(0)?, received: now() });
        }
        Ok(best(&trips))
    }

    /// Of the target, by `now64()`.
    pub async fn of_target(client: &::clickhouse::Client) -> Result<ClockOffset> {
        let mut trips = Vec::with_capacity(ROUND_TRIPS);
        for _ in 0..ROUND_TRIPS {
            let sent = now();
            let query = client.query("SELECT toUnixTimestamp64Micro(now64(6))");
            let server = query.fetch_one::<i64>().await.context("read the target's clock")?;
            trips.push(RoundTrip { sent, server, received: now() });
        }
        Ok(best(&trips))
    }

    fn values(self) -> Values {
        let seconds = |micros: i64| Some(micros as f64 / 1e6);
        values([("offset_s", seconds(self.offset_us)), ("error_s", seconds(self.error_us))])
    }
}

/// Which server's clock.
enum Server {
    Source(Session),
    Target(::clickhouse::Client),
}

pub struct ClockMeter {
    server: Server,
}

impl ClockMeter {
    pub fn source(endpoint: &SourceEndpoint) -> Self {
        ClockMeter { server: Server::Source(Session::new(endpoint)) }
    }

    pub fn target(client: ::clickhouse::Client) -> Self {
        ClockMeter { server: Server::Target(client) }
    }
}

impl Meter for ClockMeter {
    fn name(&self) -> &str {
        match self.server {
            Server::Source(_) => "source_clock",
            Server::Target(_) => "target_clock",
        }
    }

    async fn sample(&mut self) -> Result<Values> {
        let offset = match &mut self.server {
            Server::Source(session) => {
                let outcome = ClockOffset::of_source(session.client().await?).await;
                session.outcome(outcome)?
            }
            Server::Target(client) => ClockOffset::of_target(client).await?,
        };
        Ok(offset.values())
    }
}

fn now() -> i64 {
    PgMicros::now().unix_micros()
}

/// From the quickest round trip. A trip during which our own clock was set back counts as none.
fn best(trips: &[RoundTrip]) -> ClockOffset {
    let quickest = trips
        .iter()
        .filter(|trip| trip.received >= trip.sent)
        .min_by_key(|trip| trip.received - trip.sent)
        .or(trips.first());
    quickest.map_or(ClockOffset { offset_us: 0, error_us: i64::MAX }, |trip| {
        let round_trip = trip.received - trip.sent;
        // Rounded up, and a microsecond for the clocks' own resolution.
        let error_us = (round_trip.abs() + 1) / 2 + 1;
        ClockOffset { offset_us: trip.server - (trip.sent + round_trip / 2), error_us }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quickest_round_trip_decides() {
        let trip = |sent, server, received| RoundTrip { sent, server, received };
        let offset = best(&[trip(0, 5_300, 1_000), trip(2_000, 7_050, 2_100), trip(9_000, 1, 8_000)]);
        assert_eq!(offset, ClockOffset { offset_us: 5_000, error_us: 51 });
        assert_eq!(best(&[]).error_us, i64::MAX);
    }
}
