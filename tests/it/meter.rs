//! Meters on real servers.

use std::sync::Arc;

use cdcprobe::{
    meter::{ClockMeter, Meter, ProcessMeter, SlotMeter, TablesMeter, reader},
    postgres::sql_session,
};

use crate::{lab::lab, verify::target_client};

#[tokio::test]
async fn the_slot_falls_behind_as_wal_is_written() {
    let lab = lab().await;
    let source = lab.source_endpoint();
    let client = sql_session(&source, "cdcprobe test").await.unwrap();
    let mut meter = SlotMeter::new("slot", &source, "probe");
    let without = meter.sample().await.unwrap();
    assert_eq!(without.keys().collect::<Vec<_>>(), ["flush_lsn"], "no slot yet");
    client
        .batch_execute(
            "select pg_create_logical_replication_slot('probe', 'pgoutput');
             create table public.t (a text); insert into public.t select repeat('x', 1000) from generate_series(1, 1000)",
        )
        .await
        .unwrap();
    let behind = meter.sample().await.unwrap();
    assert!(behind["confirmed_behind_bytes"] > 1e6, "{behind:?}");
    assert!(behind["restart_behind_bytes"] >= behind["confirmed_behind_bytes"]);
    assert_eq!(behind["flush_lsn"] - behind["confirmed_lsn"], behind["confirmed_behind_bytes"]);
    assert_eq!((behind["active"], behind["wal_status"]), (0.0, 0.0));
    assert!(!behind.contains_key("walsender_pid") && !behind.contains_key("replay_lag_s"));
    // A session that was cut off costs one reading.
    client
        .query("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'cdcprobe meter'", &[])
        .await
        .unwrap();
    let _ = meter.sample().await;
    assert!(meter.sample().await.is_ok());
    lab.stop().await.unwrap();
}

#[tokio::test]
async fn the_targets_tables_are_counted_and_missing_ones_are_empty() {
    let lab = lab().await;
    let endpoint = lab.target_endpoint();
    let client = target_client(&endpoint);
    client.query("CREATE TABLE filled (id Int32) ENGINE = MergeTree ORDER BY id").execute().await.unwrap();
    client.query("INSERT INTO filled SELECT number FROM numbers(1000)").execute().await.unwrap();
    let tables = ["filled".to_owned(), "missing".to_owned()];
    let mut read = reader(TablesMeter::new(client, &endpoint.database, &tables));
    let values = read().await.unwrap();
    assert_eq!((values["filled.rows"], values["filled.parts"], values["missing.rows"]), (1000.0, 1.0, 0.0));
    assert!(values["filled.bytes"] > 0.0);
    lab.stop().await.unwrap();
}

#[tokio::test]
async fn clocks_on_one_machine_agree_within_their_error() {
    let lab = lab().await;
    for mut meter in [
        ClockMeter::source(&lab.source_endpoint()),
        ClockMeter::target(target_client(&lab.target_endpoint())),
    ] {
        let values = meter.sample().await.unwrap();
        assert!(values["offset_s"].abs() <= values["error_s"], "{}: {values:?}", meter.name());
        assert!(values["error_s"] < 1.0);
    }
    let pid = Arc::new(lab.postgres_pid());
    let postmaster = ProcessMeter::following("postgres", move || *pid).sample().await.unwrap();
    assert!(postmaster["rss_bytes"] > 1e6);
    lab.stop().await.unwrap();
}
