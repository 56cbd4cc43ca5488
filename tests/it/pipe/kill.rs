//! SIGKILL of the tool, of ClickHouse and of PostgreSQL: nothing is lost, nothing doubled.

use std::{
    pin::pin,
    process::{Child, Stdio},
    sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    time::Duration,
};

use cdcprobe::config::SourceEndpoint;
use futures_util::SinkExt;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio_postgres::Client;

use super::{Bench, ask, session, until, within};

const TABLES: &str = "
    create table filled (id bigint primary key, n int not null, t text);
    create table keyed (a int, b text, v numeric, at timestamptz default now(), primary key (a, b));
    insert into filled select g, g, repeat(md5(g::text), 3) from generate_series(1, 150000) g";

/// Writes while the pipe is killed; ends when told to, or after so many transactions (rows are bounded by that).
const MOST_TRANSACTIONS: u32 = 20_000;
const ID_SPACE: i64 = 160_000;

async fn write_mixed(endpoint: &SourceEndpoint, seed: u64, stop: &AtomicBool, written: &AtomicU32) {
    let mut client = session(endpoint).await;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut next_id = ID_SPACE;
    for round in 0..MOST_TRANSACTIONS {
        if stop.load(Relaxed) {
            break;
        }
        transaction(&mut client, &mut rng, &mut next_id, round).await;
        written.fetch_add(1, Relaxed);
    }
}

async fn transaction(client: &mut Client, rng: &mut StdRng, next_id: &mut i64, round: u32) {
    let (key, other) = (rng.random_range(1..ID_SPACE), rng.random_range(1..ID_SPACE));
    let count = rng.random_range(1..40_i64);
    let first = *next_id;
    let statement = match rng.random_range(0..9) {
        0 => {
            *next_id += count;
            format!("insert into filled select {first} + g, g, 'new' from generate_series(1, {count}) g")
        }
        1 => format!(
            "update filled set n = n + 1, t = 'round {round}' where id between {key} and {key} + {count}"
        ),
        2 => format!("delete from filled where id between {key} and {key} + {count} / 8"),
        3 => {
            *next_id += 1;
            format!("update filled set id = {first} + 1 where id = {key}")
        }
        4 => format!(
            "begin; insert into filled values (-{round}, 0, 'gone'); update filled set n = -1 where id < 50; rollback"
        ),
        5 => format!(
            "begin; delete from filled where id = {key}; insert into filled values ({key}, {round}, null); \
             update filled set n = n + 1 where id = {key}; update filled set t = 'last' where id = {key}; commit"
        ),
        6 => format!(
            "begin; insert into keyed (a, b, v) select {round}, g::text, g / 7.0 from generate_series(1, {count}) g; \
             update keyed set b = b || 'x' where a = {round} - 1; delete from keyed where a = {round} - 9; \
             update filled set t = 'both' where id in ({key}, {other}); commit"
        ),
        7 => format!(
            "begin; update filled set id = 0 where id = {key}; update filled set id = {key} where id = {other}; \
             update filled set id = {other} where id = 0; commit"
        ),
        _ => {
            *next_id += count;
            return copy(client, first, count).await;
        }
    };
    client.batch_execute(&statement).await.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
}

async fn copy(client: &mut Client, first: i64, count: i64) {
    let transaction = client.transaction().await.unwrap();
    let sink = transaction.copy_in("copy filled (id, n, t) from stdin").await.unwrap();
    let mut sink = pin!(sink);
    let lines: String = (1..=count).map(|row| format!("{}\t{row}\t\\N\n", first + row)).collect();
    sink.send(bytes::Bytes::from(lines)).await.unwrap();
    sink.finish().await.unwrap();
    let update = format!("update filled set n = -n where id = {}", first + 1);
    transaction.batch_execute(&update).await.unwrap();
    transaction.commit().await.unwrap();
}

/// A child that does not outlive a test that panics.
struct Running(Child);

impl Running {
    fn kill(mut self) {
        if let Some(status) = self.0.try_wait().unwrap() {
            panic!("the pipe ended by itself: {status}");
        }
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn survives_sigkill_ten_times() {
    let seed: u64 = rand::random();
    eprintln!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let bench = Bench::start("killed", &["public.filled", "public.keyed"], TABLES).await;
    let file = bench.file();
    let start = || Running(bench.command(&file).stdout(Stdio::null()).spawn().unwrap());
    let (stop, written) = (AtomicBool::new(false), AtomicU32::new(0));
    let endpoint = bench.lab.source_endpoint();
    let kills = async {
        let pipe = start();
        let rows = "select count() from killed.filled";
        let target = bench.target();
        until("the initial load's first rows", async || {
            super::try_ask(&target, rows).await.is_ok_and(|count| count != "0")
        })
        .await;
        let slots = "select count(*) from pg_replication_slots where slot_name = 'killed'";
        let before = bench.value(slots).await;
        pipe.kill();
        assert_eq!(before, "0", "the first kill is within the initial load");
        let mut within_load = 1;
        for kill in 2..=10 {
            let pipe = start();
            let delay = Duration::from_millis(rng.random_range(50..1800));
            tokio::time::sleep(delay).await;
            let loading = bench.value(slots).await == "0";
            within_load += u32::from(loading);
            eprintln!(
                "kill {kill} after {delay:?}, loading {loading}, {} transactions",
                written.load(Relaxed)
            );
            pipe.kill();
        }
        eprintln!("{within_load} kills within the initial load");
        stop.store(true, Relaxed);
    };
    tokio::join!(write_mixed(&endpoint, seed, &stop, &written), kills);
    assert!(written.load(Relaxed) > 100, "there was a load: {written:?}");

    let mut last = bench.command(&file);
    let last = tokio::task::spawn_blocking(move || last.arg("--until-caught-up").output().unwrap());
    let output = within(last).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    bench.expect_equal().await;
    bench.lab.stop().await.unwrap();
}

/// 60,000 changes in transactions of various sizes.
async fn write_backlog(bench: &Bench) {
    for part in 0..20 {
        bench
            .sql(&format!(
                "insert into filled select 200000 + {part} * 2000 + g, g, 'late' from generate_series(1, 2000) g; \
                 update filled set n = n + 1, t = 'changed' where id between {part} * 700 and {part} * 700 + 900; \
                 delete from filled where id between {part} * 3000 and {part} * 3000 + 99"
            ))
            .await;
    }
}

/// The pipe streams and holds a backlog back.
async fn held_with_backlog(bench: &Bench) -> cdcprobe::pipeline::Pipe {
    let pipe = bench.streaming().await;
    pipe.hold(true);
    write_backlog(bench).await;
    pipe
}

/// Some of the backlog has arrived, not all of it.
async fn mid_drain(pipe: &cdcprobe::pipeline::Pipe, before: u64) {
    let arrived = || pipe.counters.durable_rows.load(Relaxed);
    until("the drain has begun", async || arrived() > before).await;
}

const FEWER: &str = "
    create table filled (id bigint primary key, n int not null, t text);
    insert into filled select g, g, md5(g::text) from generate_series(1, 5000) g";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clickhouse_killed_mid_drain() {
    let mut bench = Bench::start("chkilled", &["public.filled"], FEWER).await;
    let mut pipe = held_with_backlog(&bench).await;
    let fence = bench.fence().await;
    let before = pipe.counters.durable_rows.load(Relaxed);
    pipe.hold(false);
    mid_drain(&pipe, before).await;
    bench.lab.clickhouse().kill9().await.unwrap();
    assert!(pipe.counters.durable_lsn() < fence, "the kill is in the middle of the drain");
    until("the pipe tries again", async || pipe.counters.retries.load(Relaxed) > 0).await;
    bench.lab.clickhouse().start().await.unwrap();
    within(pipe.durable(fence)).await.unwrap();
    bench.expect_equal().await;
    within(pipe.stop()).await.unwrap();
    bench.lab.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_killed_mid_drain() {
    let mut bench = Bench::start("pgkilled", &["public.filled"], FEWER).await;
    let mut pipe = held_with_backlog(&bench).await;
    let fence = bench.fence().await;
    let before = pipe.counters.durable_rows.load(Relaxed);
    pipe.hold(false);
    mid_drain(&pipe, before).await;
    bench.lab.postgres().kill9().await.unwrap();
    assert!(pipe.counters.durable_lsn() < fence, "the kill is in the middle of the drain");
    until("the pipe tries again", async || pipe.counters.retries.load(Relaxed) > 0).await;
    bench.lab.postgres().start().await.unwrap();
    within(pipe.durable(fence)).await.unwrap();
    bench.client = session(&bench.lab.source_endpoint()).await;
    bench.sql("update filled set n = 7 where id < 100").await;
    bench.caught_up(&mut pipe).await;
    bench.expect_equal().await;
    assert_eq!(
        ask(
            &bench.lab.target_endpoint(),
            "select count() from pgkilled.filled final where n = 7 and id < 100"
        )
        .await,
        bench.value("select count(*) from filled where n = 7 and id < 100").await
    );
    within(pipe.stop()).await.unwrap();
    bench.lab.stop().await.unwrap();
}
