//! Changes that are easy to get wrong, an idle pipe, and a stop in order.

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use super::{Bench, ask, within};

const TABLES: &str = "
    create table plain (id int primary key, n int not null, t text);
    create table emptied (id int primary key, t text);
    create table wide (id int primary key, n int, big text, other text);
    alter table wide alter big set storage external, alter other set storage external;
    alter table wide replica identity full;
    create table by_index (a int not null, b text not null, n int, unique (a, b));
    create unique index by_index_key on by_index (b, a);
    alter table by_index replica identity using index by_index_key;
    insert into plain select g, g, 'old' from generate_series(1, 100) g;
    insert into emptied select g, 'before' from generate_series(1, 100) g;
    insert into wide select g, 0, repeat(md5(g::text), 400), null from generate_series(1, 10) g;
    insert into by_index select g, 'b' || g, g from generate_series(1, 100) g";

const CHANGES: &[&str] = &[
    "begin; delete from plain where id = 1; insert into plain values (1, -1, 'again'); commit",
    "begin; insert into plain values (1000, 0, null); update plain set n = 1 where id = 1000; \
     update plain set n = 2, t = '' where id = 1000; delete from plain where id = 1000; \
     insert into plain values (1000, 3, 'stays'); commit",
    "begin; insert into plain values (1001, 0, null); delete from plain where id = 1001; commit",
    "begin; update plain set id = 0 where id = 2; update plain set id = 2 where id = 3; \
     update plain set id = 3 where id = 0; commit",
    "update plain set id = id + 5000 where id between 10 and 20",
    "begin; update plain set id = id - 5000 where id between 5010 and 5020; update plain set n = -5 where id = 15; commit",
    "begin; savepoint s; insert into plain values (2000, 0, 'never'); rollback to s; \
     insert into plain values (2001, 0, 'kept'); commit",
    "begin; update plain set n = 99; rollback",
    "insert into emptied select g, 'more' from generate_series(101, 200) g",
    "begin; insert into emptied values (300, 'lost'); truncate emptied; insert into emptied values (1, 'after'), (2, 'after'); commit",
    "update emptied set t = 'changed' where id = 2",
    "begin; truncate emptied, by_index; insert into by_index select g, 'c' || g, g from generate_series(1, 50) g; \
     insert into emptied values (5, 'last'), (300, 'anew'); commit",
    "update wide set n = n + 1",
    "update wide set other = repeat('x', 9000) where id = 3",
    "update wide set n = 7 where id = 3",
    "update wide set id = id + 100 where id > 5",
    "update wide set big = null where id = 1",
    "delete from wide where id = 2",
    "update by_index set n = n + 1",
    "update by_index set b = b || '!' where a < 10",
    "update by_index set a = -a where a between 20 and 25",
    "delete from by_index where a between 30 and 35",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn truncate_and_key_changes() {
    let tables = ["public.plain", "public.emptied", "public.wide", "public.by_index"];
    let bench = Bench::start("changes", &tables, TABLES).await;
    let mut pipe = bench.streaming().await;
    for change in CHANGES {
        bench.sql(change).await;
    }
    bench.caught_up(&mut pipe).await;
    bench.expect_equal().await;
    let target = bench.target();
    for (query, expected) in [
        (
            "select id, n, t from changes.plain final where id in (1, 1000, 1001, 2, 3, 2000) order by id",
            "1\t-1\tagain\n2\t3\told\n3\t2\told\n1000\t3\tstays",
        ),
        ("select id, t from changes.emptied final order by id", "5\tlast\n300\tanew"),
        (
            "select id, n, length(big), length(other) from changes.wide final where id in (1, 3, 106) order by id",
            "1\t1\t\\N\t\\N\n3\t7\t12800\t9000\n106\t1\t12800\t\\N",
        ),
        ("select count(), min(a), countIf(b like '%!') from changes.by_index final", "44\t-25\t9"),
    ] {
        assert_eq!(ask(&target, query).await, expected, "{query}");
    }
    within(pipe.stop()).await.unwrap();
    let mut pipe = bench.streaming().await;
    bench.sql("truncate plain; insert into plain values (1, 1, 'only')").await;
    bench.caught_up(&mut pipe).await;
    bench.expect_equal().await;
    within(pipe.stop()).await.unwrap();
    bench.lab.stop().await.unwrap();
}

/// An update that leaves a TOAST value alone, whose row somebody has removed from the target: it is nowhere to be had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unchanged_value_that_is_gone_is_named() {
    let sql = "create table toast (id int primary key, n int, big text);
        alter table toast alter big set storage external;
        insert into toast values (1, 0, repeat('x', 9000)), (2, 0, repeat('y', 9000))";
    let bench = Bench::start("toasted", &["public.toast"], sql).await;
    let mut pipe = bench.streaming().await;
    ask(&bench.target(), "alter table toasted.toast delete where id = 1 settings mutations_sync = 1").await;
    let before = bench.flushed().await;
    bench.sql("update toast set n = 1").await;
    let error = within(pipe.ended()).await.unwrap_err();
    let failure = cdcprobe::failure::Failure::find(&error).unwrap();
    let words = ["public.toast", "unchanged", "replica identity full"];
    assert!(words.iter().all(|word| failure.message.contains(word)), "{failure}");
    assert_eq!(
        ask(&bench.target(), "select id, n from toasted.toast final").await,
        "2\t0",
        "nothing is made up"
    );
    assert!(bench.slot_position().await <= before, "the slot keeps the change");
    bench.lab.stop().await.unwrap();
}

/// What is written elsewhere moves the slot too: an idle pipe must not hold back the server's WAL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_pipe_confirms() {
    let sql = "create table followed (id int primary key); create table elsewhere (id int, t text)";
    let bench = Bench::start("idle", &["public.followed"], sql).await;
    let pipe = bench.streaming().await;
    bench.sql("insert into elsewhere select g, md5(g::text) from generate_series(1, 20000) g").await;
    let written = bench.flushed().await;
    super::until("the slot passes what was written elsewhere", async || {
        bench.slot_position().await >= written
    })
    .await;
    within(pipe.stop()).await.unwrap();
    bench.lab.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_stops_in_order_and_nothing_is_sent_again() {
    let sql = "create table t (id int primary key, n int); insert into t select g, g from generate_series(1, 100) g";
    let bench = Bench::start("graceful", &["public.t"], sql).await;
    let file = bench.file();
    let mut command = bench.command(&file);
    let child = command.arg("--json").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = Pid::from_child(&child);
    let target = bench.target();
    super::until("the pipe streams", async || {
        bench.value("select count(*) from pg_stat_replication where state = 'streaming'").await == "1"
    })
    .await;
    bench.sql("insert into t select g, g from generate_series(101, 1000) g").await;
    bench.sql("update t set n = -n where id <= 10").await;
    let committed = bench.flushed().await;
    let arrived = "select count(), countIf(n < 0) from graceful.t final";
    super::until("the rows have arrived", async || ask(&target, arrived).await == "1000\t10").await;
    kill_process(pid, Signal::TERM).unwrap();
    let output =
        within(tokio::task::spawn_blocking(move || child.wait_with_output().unwrap())).await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let durable: cdcprobe::units::Lsn = summary["durable_lsn"].as_str().unwrap().parse().unwrap();
    assert_eq!(bench.slot_position().await, durable, "the slot stands where the target does");
    assert!(durable >= committed, "{durable} is not up to the last commit, {committed}");

    let mut again = bench.command(&file);
    again.args(["--json", "--until-caught-up"]).stderr(Stdio::piped());
    let output = within(tokio::task::spawn_blocking(move || again.output().unwrap())).await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["durable_rows"], 0, "something was sent again: {summary}");
    bench.expect_equal().await;
    bench.lab.stop().await.unwrap();
}
