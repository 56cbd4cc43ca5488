//! Updates that leave a large value alone do not carry it: it must come from the row that was there before.

use super::{Bench, ask, within};

/// Larger than a page's share, not compressible, stored outside of the row.
const LARGE: &str =
    "(select string_agg(md5(n::text || seed), '') from generate_series(1, 200) n, (values ('SEED')) s(seed))";

fn large(seed: &str) -> String {
    LARGE.replace("SEED", seed)
}

const TABLE: &str = "create table big (id int, part text, n int, v text, w bytea, tags text[], primary key (id, part));
    alter table big alter v set storage external, alter w set storage external, alter tags set storage external;";

/// A row with three large values.
fn row(id: i32, seed: &str) -> String {
    let v = large(seed);
    format!("({id}, 'p', 0, {v}, {v}::bytea, array[{v}, null])")
}

async fn start(name: &'static str) -> (Bench, cdcprobe::pipeline::Pipe) {
    let setup = format!("{TABLE} insert into big values {}, {}", row(1, "one"), row(2, "two"));
    let bench = Bench::start(name, &["public.big"], &setup).await;
    let pipe = bench.streaming().await;
    (bench, pipe)
}

async fn seeds(bench: &Bench) -> String {
    let target = bench.target();
    let sql = format!(
        "select arrayStringConcat(arraySort(groupArray(concat(toString(id), ':', toString(n), ':', toString(length(v)), ':', \
         toString(length(w)), ':', toString(length(tags))))), ' ') from {}.big final",
        bench.name
    );
    ask(&target, &sql).await
}

/// After each step source and target are equal, in every column.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unchanged_values_come_from_the_row_before() {
    let (bench, mut pipe) = start("toast").await;
    let steps = [
        ("of the snapshot", "update big set n = 1".to_owned()),
        ("of a streamed row", format!("insert into big values {}; update big set n = 2 where id = 3", row(3, "three"))),
        ("in one transaction with its insert", format!("begin; insert into big values {}; update big set n = 3 where id = 4; commit", row(4, "four"))),
        ("again and again", "begin; update big set n = 4 where id = 1; update big set n = 5 where id = 1; commit; update big set n = 6 where id = 1".to_owned()),
        ("after a change of one of them", format!("begin; update big set v = {} where id = 1; update big set n = 7 where id = 1; commit", large("five"))),
        ("of the old key", "update big set id = 10, n = 8 where id = 1".to_owned()),
        ("across several keys", "begin; update big set id = 11 where id = 10; update big set id = 12 where id = 11; update big set n = 9 where id = 12; commit".to_owned()),
        ("of swapped keys", "begin; update big set id = 100 where id = 2; update big set id = 2 where id = 3; update big set id = 3 where id = 100; update big set n = n + 1; commit".to_owned()),
        ("after delete and insert", format!("begin; delete from big where id = 4; insert into big values {}; update big set n = 10 where id = 4; commit", row(4, "six"))),
        ("beside NULL and empty ones", "begin; update big set v = null, w = '' where id = 4; update big set n = 11 where id = 4; commit".to_owned()),
        ("of a key that another row takes", format!("begin; update big set id = 50 where id = 12; insert into big values {}; update big set n = 12 where id = 12; commit", row(12, "seven"))),
        ("in a change that ends with a delete", "begin; update big set n = 13 where id = 50; delete from big where id = 50; commit".to_owned()),
        ("after a truncate", format!("begin; update big set n = 14; truncate big; insert into big values {}, {}; update big set n = 15 where id = 1; commit", row(1, "eight"), row(2, "nine"))),
    ];
    for (what, sql) in steps {
        bench.sql(&sql).await;
        bench.caught_up(&mut pipe).await;
        bench.expect_equal().await;
        assert!(!seeds(&bench).await.is_empty(), "{what}");
    }
    assert_eq!(seeds(&bench).await, "1:15:6400:6400:2 2:0:6400:6400:2");
    within(pipe.stop()).await.unwrap();
    bench.lab.stop().await.unwrap();
}

/// Many rows that do not depend on one another are looked up together, and a batch ends where one does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_rows_are_looked_up_together() {
    let (bench, mut pipe) = start("toast_many").await;
    bench
        .sql(
            "insert into big select g, 'p', 0, (select string_agg(md5((n * g)::text), '') from generate_series(1, 100) n), \
             '\\x00', '{a}' from generate_series(100, 1099) g",
        )
        .await;
    bench.sql("update big set n = n + 1 where id >= 100").await;
    bench
        .sql("update big set id = id + 10000 where id >= 100; update big set n = n + 1 where id >= 100")
        .await;
    bench.caught_up(&mut pipe).await;
    bench.expect_equal().await;
    within(pipe.stop()).await.unwrap();
    bench.lab.stop().await.unwrap();
}

/// Every type of key can be looked up; and in text form too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_can_be_looked_up() {
    let keys = [
        ("int2", "7", "8"),
        ("int8", "-7", "9223372036854775807"),
        ("text", "E'it''s \\\\ ü\\n'", "''"),
        ("uuid", "'00112233-4455-6677-8899-aabbccddeeff'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"),
        ("date", "'1850-02-28'", "'9999-12-31'"),
        ("timestamptz", "'1960-01-01 00:00:00.000001+00'", "'2024-01-01'"),
        ("timestamp", "'1960-01-01 00:00:00.000001'", "'2024-01-01'"),
        ("time", "'24:00'", "'00:00:00.5'"),
        ("numeric(40,3)", "-12345678901234567890.5", "0.001"),
        ("numeric", "1.50", "-0.07"),
        ("bool", "true", "false"),
        ("bytea", "'\\x00ff27'", "''"),
        ("float8", "0.1", "-1e300"),
        ("oid", "4294967295", "0"),
        ("char(5)", "'a'", "'b'"),
        ("inet", "'10.0.0.1'", "'::1/64'"),
    ];
    let mut bench = Bench::start("toast_keys", &[], "select 1").await;
    let tables: Vec<String> = (0..keys.len()).map(|index| format!("public.k{index}")).collect();
    bench.tables = tables.iter().map(|table| &*table.clone().leak()).collect();
    let v = large("key");
    for (index, (kind, key, _)) in keys.iter().enumerate() {
        bench
            .sql(&format!(
                "create table k{index} (k {kind} primary key, n int, v text); alter table k{index} alter v set storage external;
                 insert into k{index} values ({key}, 0, {v})"
            ))
            .await;
    }
    let mut pipe = bench.streaming().await;
    for (index, (_, _, other)) in keys.iter().enumerate() {
        bench
            .sql(&format!(
                "update k{index} set n = 1; update k{index} set k = {other}; update k{index} set n = 2"
            ))
            .await;
    }
    bench.caught_up(&mut pipe).await;
    bench.expect_equal().await;
    within(pipe.stop()).await.unwrap();
    bench.lab.stop().await.unwrap();
}

/// The stream is read again from an older position, over rows as they were written and over merged ones: what the target
/// already has is neither spoiled nor asked for in vain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_finds_what_it_has_delivered() {
    let (bench, mut pipe) = start("toast_replay").await;
    bench.caught_up(&mut pipe).await;
    for (merged, id) in [(false, 5), (true, 6)] {
        let checkpoint = "select argMax(lsn, sequence) from toast_replay._cdcprobe_checkpoint";
        let old = ask(&bench.target(), checkpoint).await;
        bench.value("select pg_copy_logical_replication_slot('toast_replay', 'toast_old')::text").await;
        bench
            .sql(&format!(
                "update big set n = 1; update big set id = {id}, n = 2 where id <> 2; update big set v = {} where id = {id}; \
                 update big set n = 3; delete from big where id = 2; insert into big values {}; update big set n = 4 where id = 2",
                large("new"),
                row(2, "again")
            ))
            .await;
        bench.caught_up(&mut pipe).await;
        bench.expect_equal().await;
        within(pipe.stop()).await.unwrap();
        if merged {
            ask(&bench.target(), "optimize table toast_replay.big final").await;
        }
        for sql in [
            "select pg_drop_replication_slot('toast_replay')::text",
            "select pg_copy_logical_replication_slot('toast_old', 'toast_replay')::text",
            "select pg_drop_replication_slot('toast_old')::text",
        ] {
            bench.value(sql).await;
        }
        let back = format!(
            "insert into toast_replay._cdcprobe_checkpoint (slot, system_identifier, timeline, lsn, stage, sequence) \
             select slot, system_identifier, timeline, {old}, stage, sequence + 1 from toast_replay._cdcprobe_checkpoint \
             order by sequence desc limit 1"
        );
        ask(&bench.target(), &back).await;
        pipe = bench.streaming().await;
        bench.caught_up(&mut pipe).await;
        bench.expect_equal().await;
        bench.sql("update big set n = n + 1").await;
        bench.caught_up(&mut pipe).await;
        bench.expect_equal().await;
    }
    within(pipe.stop()).await.unwrap();
    bench.lab.stop().await.unwrap();
}
