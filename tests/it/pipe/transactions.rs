//! Transactions that are sent while they run, and prepared ones: nothing of them is seen before they commit, nothing is
//! lost, and what was rolled back never was.

use std::{path::PathBuf, process::Stdio, sync::atomic::Ordering::Relaxed};

use cdcprobe::{
    config::Transactions,
    failure::{Failure, Kind},
    lab::{Lab, LabOptions},
    pipeline::Pipe,
    units::Lsn,
};

use crate::lab::postgres_major;

use super::{Bench, ask, session, until, within};

const TABLES: &str = "
    create table item (id bigint primary key, n int not null, t text);
    create table other (id bigint primary key, n int not null, t text);
    alter table other replica identity full;
    create table large (id int primary key, n int, v text);
    alter table large alter v set storage external;
    insert into item select g, 0, 'first' from generate_series(1, 1000) g;
    insert into other select g, 0, 'first' from generate_series(1, 1000) g;
    insert into large select g, 0, repeat(md5(g::text), 300) from generate_series(1, 20) g";
const NAMES: [&str; 3] = ["public.item", "public.other", "public.large"];

/// A source that sends every transaction in pieces while it runs, and can prepare.
async fn bench(name: &'static str, transactions: Transactions, settings: &[(&str, &str)]) -> Bench {
    let own = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let prepared = ("max_prepared_transactions".to_owned(), "10".to_owned());
    let options = LabOptions { postgres_settings: own.chain([prepared]).collect(), ..crate::lab::options() };
    let bench = Bench::on(Lab::start(&options).await.unwrap(), name, &NAMES, TABLES).await;
    Bench { transactions, ..bench }
}

/// PostgreSQL 16 and later stream every transaction when asked to; earlier ones stream only what outgrows their memory.
fn immediate() -> &'static [(&'static str, &'static str)] {
    if streams_all() {
        &[("debug_logical_replication_streaming", "immediate")]
    } else {
        &[("logical_decoding_work_mem", "64kB")]
    }
}

fn streams_all() -> bool {
    postgres_major() >= 16
}

async fn rows(bench: &Bench, table: &str, condition: &str) -> String {
    let count =
        format!("select count() from {}.{table} final where _deleted = 0 and ({condition})", bench.name);
    ask(&bench.target(), &count).await
}

async fn streamed_transactions(bench: &Bench) -> u64 {
    let query =
        format!("select stream_txns from pg_stat_replication_slots where slot_name = '{}'", bench.name);
    bench.value(&query).await.parse().unwrap()
}

async fn stop(bench: Bench, pipe: Pipe) {
    within(pipe.stop()).await.unwrap();
    bench.lab.stop().await.unwrap();
}

const ALONE: &[&str] = &[
    "begin; insert into item select g, 1, 'kept' from generate_series(2001, 2500) g; savepoint a; \
     insert into item select g, 1, 'never' from generate_series(3001, 3500) g; savepoint b; \
     update item set t = 'never' where id < 100; rollback to a; \
     insert into item select g, 1, 'kept' from generate_series(3401, 3600) g; savepoint c; \
     delete from item where id < 50; release c; commit",
    "begin; update item set n = 2; delete from other; rollback",
    "begin; savepoint a; update other set n = 3; savepoint b; update other set n = 4 where id < 500; rollback to b; \
     update other set id = id + 5000 where id > 900; commit",
    "begin; insert into item values (9001, 0, 'lost'); truncate item, other; insert into item values (1, 5, 'after'); commit",
    "begin; truncate item; rollback",
    "begin; update large set n = n + 1; update large set id = id + 100 where id > 10; update large set n = n + 1; \
     update large set v = null where id = 1; update large set n = 9 where id = 1; commit",
    "begin; select pg_logical_emit_message(true, 'cdcprobe', 'x'); select pg_logical_emit_message(false, 'loose', 'x'); \
     select pg_logical_emit_message(true, 'loose', 'x'); insert into item values (2, 6, null); commit",
    "insert into item select g, 7, md5(g::text) from generate_series(10001, 15000) g",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streamed_transactions_arrive_when_they_commit() {
    let bench = bench("streamed", Transactions::default(), immediate()).await;
    let mut pipe = bench.streaming().await;
    for sql in ALONE {
        bench.sql(sql).await;
        bench.caught_up(&mut pipe).await;
        bench.expect_equal().await;
    }
    // Two that overlap, and one that is rolled back, each seen at its own commit only.
    let endpoint = bench.lab.source_endpoint();
    let (one, two, three) = (session(&endpoint).await, session(&endpoint).await, session(&endpoint).await);
    for part in 0..4 {
        for (session, n) in [(&one, 101), (&two, 102), (&three, 103)] {
            let sql = format!(
                "{} insert into other select {n} * 10000 + {part} * 100 + g, {n}, '' from generate_series(1, 100) g",
                if part == 0 { "begin;" } else { "" }
            );
            session.batch_execute(&sql).await.unwrap();
        }
    }
    bench.caught_up(&mut pipe).await;
    if streams_all() {
        assert!(pipe.counters.in_progress_bytes.load(Relaxed) > 0, "they are kept");
    }
    assert_eq!(rows(&bench, "other", "n > 100").await, "0");
    two.batch_execute("commit").await.unwrap();
    bench.caught_up(&mut pipe).await;
    assert_eq!(rows(&bench, "other", "n > 100").await, "400");
    three.batch_execute("rollback").await.unwrap();
    one.batch_execute("commit").await.unwrap();
    bench.caught_up(&mut pipe).await;
    bench.expect_equal().await;
    assert_eq!(rows(&bench, "other", "n > 100").await, "800");
    assert_eq!(pipe.counters.in_progress_bytes.load(Relaxed), 0);
    // Before 16 only the large one of them.
    let expected = if streams_all() { 10 } else { 1 };
    assert!(streamed_transactions(&bench).await >= expected, "the server has streamed them");
    stop(bench, pipe).await;
}

/// A pipe that stops while a transaction runs gets it whole when it comes back, though the slot has moved on meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_outlives_the_pipe() {
    let bench = bench("outlived", Transactions::default(), immediate()).await;
    let mut pipe = bench.streaming().await;
    let open = session(&bench.lab.source_endpoint()).await;
    open.batch_execute(
        "begin; update item set n = 1 where id <= 500; savepoint a; delete from other; rollback to a",
    )
    .await
    .unwrap();
    bench.sql("update other set n = 1").await;
    bench.caught_up(&mut pipe).await;
    let before = bench.slot_position().await;
    within(pipe.stop()).await.unwrap();
    bench.sql("update other set n = 2 where id < 10").await;
    open.batch_execute("update item set n = 2 where id > 500; commit").await.unwrap();
    let mut pipe = bench.streaming().await;
    bench.caught_up(&mut pipe).await;
    bench.expect_equal().await;
    assert!(bench.slot_position().await > before);
    stop(bench, pipe).await;
}

/// Prepared transactions are seen when they are committed, also by a pipe that was not there when they were prepared.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prepared_transactions_arrive_when_they_commit() {
    for (name, settings) in [("prepared", &[] as &[_]), ("prepared_streamed", immediate())] {
        let two_phase = Transactions { two_phase: true, ..Transactions::default() };
        let bench = bench(name, two_phase, settings).await;
        if postgres_major() < 15 {
            let error = within(bench.pipe().ended()).await.unwrap_err();
            let failure = error.downcast_ref::<Failure>().unwrap();
            assert!(failure.message.contains("transactions.two_phase"), "{failure:?}");
            bench.lab.stop().await.unwrap();
            continue;
        }
        // Prepared before there is a slot, committed after.
        bench.sql("begin; insert into item values (5000, 1, 'early'); prepare transaction 'early'").await;
        let open = bench.pipe();
        within(async {
            until("the slot waits for it", async || {
                bench.value("select count(*) from pg_replication_slots").await == "1"
            })
            .await;
        })
        .await;
        bench.sql("commit prepared 'early'").await;
        let mut pipe = open;
        within(pipe.streaming()).await.unwrap();
        bench.sql("begin; update item set n = 1; prepare transaction 'kept'").await;
        bench.sql("begin; delete from other; delete from large; prepare transaction 'undone'").await;
        bench.sql("begin; insert into other values (2000, 0, 'x'); savepoint a; delete from other where id = 2000; rollback to a; \
                   prepare transaction 'it''s \"odd\"'").await;
        let prepares = bench.flushed().await;
        bench.sql("insert into item values (6000, 0, 'beside')").await;
        bench.fence().await;
        until("what was committed beside them", async || rows(&bench, "item", "id = 6000").await == "1")
            .await;
        assert_eq!(rows(&bench, "item", "n = 1").await, "1", "only the early one");
        assert!(bench.slot_position().await < prepares, "the slot waits");
        within(pipe.stop()).await.unwrap();
        let mut pipe = bench.streaming().await;
        for end in ["rollback prepared 'undone'", "commit prepared 'kept'", "commit prepared 'it''s \"odd\"'"]
        {
            bench.sql(end).await;
        }
        bench.caught_up(&mut pipe).await;
        bench.expect_equal().await;
        until("the slot moves on", async || bench.slot_position().await > prepares).await;
        let kind = "select two_phase::text from pg_replication_slots";
        assert_eq!(bench.value(kind).await, "true");
        stop(bench, pipe).await;
    }
}

/// Rows that came from elsewhere are rows like all others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_another_origin_arrive() {
    let bench = bench("origins", Transactions::default(), &[]).await;
    let mut pipe = bench.streaming().await;
    bench
        .sql(
            "select pg_replication_origin_create('elsewhere'), pg_replication_origin_session_setup('elsewhere'); \
             begin; select pg_replication_origin_xact_setup('0/100', now()); update item set n = 1; commit",
        )
        .await;
    bench.caught_up(&mut pipe).await;
    bench.expect_equal().await;
    assert_eq!(rows(&bench, "item", "n = 1").await, "1000");
    stop(bench, pipe).await;
}

/// A folder that takes no file ends the pipe by name; the next one, with a folder, has lost nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_without_room_is_named() {
    let nowhere = Transactions { spill_folder: PathBuf::from("/no/such/folder"), ..Transactions::default() };
    let mut bench = bench("no_room", nowhere, &[("logical_decoding_work_mem", "64kB")]).await;
    let mut pipe = bench.streaming().await;
    bench.sql("update item set n = 1; insert into item select g, 1, repeat('x', 100) from generate_series(20001, 40000) g").await;
    let error = within(pipe.ended()).await.unwrap_err();
    let failure = error.downcast_ref::<Failure>().unwrap();
    assert_eq!(failure.kind, Kind::Environment);
    assert!(failure.message.contains("/no/such/folder") && failure.hint.is_some(), "{failure:?}");
    bench.transactions = Transactions::default();
    let mut pipe = bench.streaming().await;
    bench.caught_up(&mut pipe).await;
    bench.expect_equal().await;
    stop(bench, pipe).await;
}

/// Kilobytes of memory that a process has had resident at most.
fn peak_memory_kb(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// One transaction of so many rows, streamed into a pipe of its own process; its peak memory.
async fn one_transaction(rows_in_all: u64) -> u64 {
    let bench = bench("large_one", Transactions::default(), &[("logical_decoding_work_mem", "8MB")]).await;
    let file = bench.file();
    let mut child = bench.command(&file).stdout(Stdio::null()).spawn().unwrap();
    let slots = "select count(*) from pg_replication_slots where slot_name = 'large_one' and active";
    until("the pipe streams", async || bench.value(slots).await == "1").await;
    bench
        .sql(&format!(
            "begin; update item set n = 1; savepoint a; \
             insert into item select g, 2, md5(g::text) from generate_series(100001, 100000 + {rows_in_all} / 10) g; \
             rollback to a; \
             insert into item select g, 3, md5(g::text) from generate_series(100001, 100000 + {rows_in_all}) g; commit"
        ))
        .await;
    let end: Lsn = bench.fence().await;
    let patience = std::time::Duration::from_secs(600);
    tokio::time::timeout(patience, async {
        while bench.slot_position().await < end {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    })
    .await
    .unwrap();
    let peak = peak_memory_kb(child.id());
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT)
        .unwrap();
    let ended = tokio::task::spawn_blocking(move || child.wait().unwrap());
    within(ended).await.unwrap();
    bench.expect_equal().await;
    assert!(streamed_transactions(&bench).await >= 1);
    bench.lab.stop().await.unwrap();
    peak
}

/// Far more than what is kept in memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_transaction_does_not_fill_the_memory() {
    let peak = one_transaction(500_000).await;
    eprintln!("peak memory {peak} kB");
    assert!(peak < 256 << 10, "{peak} kB");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes some minutes"]
async fn a_transaction_of_five_million_rows_does_not_fill_the_memory() {
    let peak = one_transaction(5_000_000).await;
    eprintln!("peak memory {peak} kB");
    assert!(peak < 256 << 10, "{peak} kB");
}
