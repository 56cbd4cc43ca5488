//! What a figure was measured on: versions, settings, system, round trips, clocks.

use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::{Value, json};

use crate::{
    config::{SourceEndpoint, TargetEndpoint},
    meter::ClockOffset,
    pipeline::target_client,
    postgres::sql_session,
    record::RunDir,
};

/// Reads it all into the run's manifest; returns the offset of the source's clock.
pub async fn record(
    dir: &RunDir,
    source: &SourceEndpoint,
    target: &TargetEndpoint,
) -> anyhow::Result<ClockOffset> {
    let client = sql_session(source, "cdcprobe evidence").await?;
    let clickhouse = target_client(target);
    let row = client
        .query_one(
            "select pg_catalog.current_setting('server_version'), system_identifier::text, timeline_id::text \
                    from pg_catalog.pg_control_system(), pg_catalog.pg_control_checkpoint()",
            &[],
        )
        .await
        .context("read the source's version and system")?;
    let settings = client.query_one(include_str!("../postgres/sql/evidence.sql"), &[]).await;
    let settings: Value = serde_json::from_str(settings.context("read the source's settings")?.get(0))?;
    let version: String =
        clickhouse.query("select version()").fetch_one().await.context("read the target's version")?;
    let source_clock = ClockOffset::of_source(&client).await?;
    let target_clock = ClockOffset::of_target(&clickhouse).await?;
    let source_round_trip = round_trip(async || Ok(client.batch_execute("select 1").await?)).await?;
    let target_round_trip = round_trip(async || Ok(clickhouse.query("select 1").execute().await?)).await?;
    dir.update_manifest(|manifest| {
        manifest.server_versions.insert("postgres".to_owned(), row.get(0));
        manifest.server_versions.insert("clickhouse".to_owned(), version);
        manifest.evidence.insert(
            "postgres".to_owned(),
            json!({
                "settings": settings,
                "system_identifier": row.get::<_, String>(1),
                "timeline": row.get::<_, String>(2),
                "round_trip_us": source_round_trip.as_micros() as u64,
                "clock_offset_us": source_clock.offset_us,
                "clock_offset_error_us": source_clock.error_us,
            }),
        );
        manifest.evidence.insert(
            "clickhouse".to_owned(),
            json!({
                "round_trip_us": target_round_trip.as_micros() as u64,
                "clock_offset_us": target_clock.offset_us,
                "clock_offset_error_us": target_clock.error_us,
            }),
        );
    })?;
    Ok(source_clock)
}

/// The shortest of ten.
async fn round_trip(mut ask: impl AsyncFnMut() -> anyhow::Result<()>) -> anyhow::Result<Duration> {
    let mut shortest = Duration::MAX;
    for _ in 0..10 {
        let began = Instant::now();
        ask().await?;
        shortest = shortest.min(began.elapsed());
    }
    Ok(shortest)
}
