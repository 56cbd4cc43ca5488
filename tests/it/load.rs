//! The load on a real server: what it says it wrote is there, and it stops at its bound.

use std::time::{Duration, Instant};

use cdcprobe::{
    config::{LoadPlan, TableName, Workload},
    failure::{Failure, Kind},
    lab::Lab,
    load::{self, LoadResult, TableState, simple_update},
    postgres::sql_session,
};
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use crate::lab::lab;

async fn client(lab: &Lab) -> Client {
    sql_session(&lab.source_endpoint(), "cdcprobe test").await.unwrap()
}

fn table() -> TableName {
    TableName::new("Probe space", "cdc_probe")
}

fn plan(workload: Workload, millis: u64, rate_per_s: Option<f64>) -> LoadPlan {
    LoadPlan { workload, clients: 4, duration: Duration::from_millis(millis), rate_per_s, seed: 1 }
}

fn inserts(rows_per_statement: u32) -> Workload {
    Workload::InsertBatch { table: table(), rows_per_statement, payload_bytes: 200 }
}

async fn run(lab: &Lab, plan: &LoadPlan) -> LoadResult {
    let running = load::start(&lab.source_endpoint(), plan, &CancellationToken::new()).await.unwrap();
    running.finish().await.unwrap()
}

#[tokio::test]
async fn what_it_counts_is_what_it_wrote() {
    let lab = lab().await;
    let client = client(&lab).await;
    assert_eq!(load::create_table(&client, &table()).await.unwrap(), TableState::Created);
    let result = run(&lab, &plan(inserts(100), 1500, None)).await;
    let row = client
        .query_one(
            r#"select count(*), count(distinct payload), min(length(payload)), max(length(payload))
               from "Probe space".cdc_probe"#,
            &[],
        )
        .await
        .unwrap();
    let (count, distinct, shortest, longest): (i64, i64, i32, i32) =
        (row.get(0), row.get(1), row.get(2), row.get(3));
    assert_eq!((count as u64, distinct, shortest, longest), (result.rows, count, 200, 200));
    assert!(result.rows > 0 && result.rows == result.statements * 100);
    assert_eq!(result.rows, result.rows_by_second.iter().sum::<u64>());
    assert_eq!((result.errors, result.unanswered, result.unsent), (0, 0, 0));
    assert_eq!(result.latency_us.len(), result.statements);
    // Little's law: clients are always either waiting for an answer or thinking.
    let cycle = result.mean_latency_s + result.mean_think_s;
    let clients = result.statements as f64 / result.elapsed().as_secs_f64() * cycle;
    assert!((3.5..=4.01).contains(&clients), "{clients}");
    lab.stop().await.unwrap();
}

#[tokio::test]
async fn an_open_loop_keeps_its_rate_or_says_what_it_left_unsent() {
    let lab = lab().await;
    let client = client(&lab).await;
    load::create_table(&client, &table()).await.unwrap();
    let result = run(&lab, &plan(inserts(1), 1000, Some(200.0))).await;
    assert_eq!(result.statements + result.unsent, 200);
    // A lock that is held until after the end: statements behind it are late, and those never sent are counted.
    let plan = plan(inserts(1), 500, Some(200.0));
    let running = load::start(&lab.source_endpoint(), &plan, &CancellationToken::new()).await.unwrap();
    client.batch_execute(r#"begin; lock table "Probe space".cdc_probe"#).await.unwrap();
    let locked = running.started().elapsed();
    assert!(locked < Duration::from_millis(400), "the lock came too late to matter");
    tokio::time::sleep_until((running.started() + Duration::from_millis(600)).into()).await;
    client.batch_execute("commit").await.unwrap();
    let result = running.finish().await.unwrap();
    assert_eq!(result.statements + result.unsent, 100);
    assert!(result.unsent > 0);
    assert!(result.latency_us.max() >= 200_000, "late ones are charged: {}", result.latency_us.max());
    lab.stop().await.unwrap();
}

/// Until so many sessions wait for a lock.
async fn until_waiting(client: &Client, sessions: i64) {
    let sql = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'";
    let patience = Instant::now() + Duration::from_secs(30);
    while client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) < sessions {
        assert!(Instant::now() < patience, "the clients do not wait for the lock");
    }
}

#[tokio::test]
async fn it_stops_when_cancelled_even_if_the_server_does_not_answer() {
    let lab = lab().await;
    let client = client(&lab).await;
    load::create_table(&client, &table()).await.unwrap();
    let cancel = CancellationToken::new();
    let running =
        load::start(&lab.source_endpoint(), &plan(inserts(1), 3_600_000, None), &cancel).await.unwrap();
    client.batch_execute(r#"begin; lock table "Probe space".cdc_probe"#).await.unwrap();
    until_waiting(&client, 4).await;
    let begun = Instant::now();
    cancel.cancel();
    let result = running.finish().await.unwrap();
    assert!(begun.elapsed() < load::worker::GRACE + Duration::from_secs(5));
    assert_eq!(result.unanswered, 4, "every client was waiting for the lock");
    // Nor does it wait for a lock before it has started.
    let cancel = CancellationToken::new();
    let plan = plan(inserts(1), 3_600_000, None);
    let endpoint = lab.source_endpoint();
    let (started, ()) = tokio::join!(load::start(&endpoint, &plan, &cancel), async { cancel.cancel() });
    assert!(started.is_err());
    lab.stop().await.unwrap();
}

#[tokio::test]
async fn somebody_elses_table_is_refused_by_name() {
    let lab = lab().await;
    let client = client(&lab).await;
    client.batch_execute("create table public.precious (id int)").await.unwrap();
    let precious = TableName::new("public", "precious");
    for outcome in
        [load::create_table(&client, &precious).await.err(), load::drop_table(&client, &precious).await.err()]
    {
        let error = outcome.expect("refused");
        let failure = Failure::find(&error).expect("a failure with a remedy");
        assert_eq!(failure.kind, Kind::Config);
        assert!(failure.message.contains("public.precious") && failure.hint.is_some(), "{failure:?}");
    }
    client.query_one("select count(*) from public.precious", &[]).await.unwrap();
    lab.stop().await.unwrap();
}

#[tokio::test]
async fn fill_adds_as_many_rows_as_asked_for() {
    let lab = lab().await;
    let client = client(&lab).await;
    load::create_table(&client, &table()).await.unwrap();
    let told = std::sync::atomic::AtomicU64::new(0);
    let tell = |rows| {
        told.fetch_max(rows, std::sync::atomic::Ordering::Relaxed);
    };
    load::fill(&lab.source_endpoint(), &table(), 123_456, 200, tell).await.unwrap();
    assert_eq!(told.into_inner(), 123_456);
    let row = client
        .query_one(
            r#"select count(*), count(distinct payload), sum(length(payload)), max(batch), max(id)
               from "Probe space".cdc_probe"#,
            &[],
        )
        .await
        .unwrap();
    let (count, distinct, letters): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
    assert_eq!((count, distinct, letters), (123_456, 123_456, 123_456 * 200));
    assert_eq!((row.get::<_, i32>(3), row.get::<_, i64>(4)), (1234, 123_456));
    lab.stop().await.unwrap();
}

#[tokio::test]
async fn simple_update_keeps_pgbenchs_books() {
    let lab = lab().await;
    let client = client(&lab).await;
    assert_eq!(simple_update::create_tables(&client, 1).await.unwrap(), TableState::Created);
    assert_eq!(simple_update::create_tables(&client, 1).await.unwrap(), TableState::Kept);
    let result = run(&lab, &plan(Workload::SimpleUpdate { scale: 1 }, 1000, None)).await;
    assert_eq!(result.first_error, None);
    let row = client
        .query_one(
            "select (select count(*) from public.pgbench_accounts), (select count(*) from public.pgbench_history),
                    (select sum(abalance) from public.pgbench_accounts) = (select sum(delta) from public.pgbench_history)",
            &[],
        )
        .await
        .unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1) as u64), (100_000, result.statements));
    assert!(row.get::<_, bool>(2), "accounts and history agree");
    assert_eq!(result.rows, 2 * result.statements);
    assert_eq!(simple_update::create_tables(&client, 2).await.unwrap(), TableState::Created, "another scale");
    lab.stop().await.unwrap();
}
