//! Tables without a key, under REPLICA IDENTITY FULL: every row is there as often as in the source.

use super::{Bench, ask, within};

const TABLES: &str = "
    create table event (n int, t text);
    alter table event replica identity full;
    create table odd (i int8, x numeric, f float8, b bytea, at timestamptz, tags text[], j jsonb, k bool, \"it's `a`\" text);
    alter table odd replica identity full;
    alter table odd alter b set storage external;
    create table later (id int, n int, primary key (id) deferrable initially deferred);
    alter table later replica identity full;
    insert into event select g % 10, 't' || g % 3 from generate_series(1, 1000) g;
    insert into event values (null, null), (null, null), (null, ''), (null, '\\N'), (1, E'a\\tb\\n');
    insert into odd values
        (1, 1.50, 'NaN', '\\x00ff', '2020-01-01', '{a,null}', '{\"a\": 1}', true, 'x'),
        (1, 1.50, 'NaN', '\\x00ff', '2020-01-01', '{a,null}', '{\"a\": 1}', true, 'x'),
        (null, null, null, null, null, null, null, null, null), (null, null, '-0', '', null, '{}', null, null, '');
    insert into later select g, g from generate_series(1, 10) g";

const CHANGES: &[&str] = &[
    "insert into event values (1, 't1'), (1, 't1'), (1, 't1')",
    "delete from event where ctid = (select min(ctid) from event where n = 1 and t = 't1')",
    "update event set t = 'changed' where ctid in (select ctid from event where n = 2 limit 7)",
    "update event set n = n",
    "begin; insert into event values (77, 'twice'); insert into event values (77, 'twice'); delete from event where n = 77; \
     insert into event values (77, 'twice'); commit",
    "begin; update event set t = null where n = 3; savepoint a; delete from event where n = 4; rollback to a; commit",
    "delete from event where n is null and t is null and ctid = (select min(ctid) from event where n is null and t is null)",
    "update odd set b = decode(repeat(md5('b'), 300), 'hex') where i = 1",
    "update odd set tags = null, f = 'infinity'",
    "update odd set x = x * 2 where i = 1",
    "insert into odd select * from odd; insert into odd select * from odd",
    "delete from odd where ctid in (select ctid from odd where i is null limit 3)",
    "begin; update later set id = 11 - id; update later set n = n + 1; insert into later values (11, 0); commit",
    "begin; delete from later where id = 1; insert into later values (1, 9); update later set id = 12 where id = 1; commit",
    "begin; insert into event values (5, 'lost'); truncate event; insert into event values (5, 'kept'), (5, 'kept'); commit",
];

async fn count(bench: &Bench, table: &str) -> String {
    ask(&bench.target(), &format!("select count() from {}.{table}_current", bench.name)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicates_are_counted() {
    let bench = Bench::start("keyless", &["public.event", "public.odd", "public.later"], TABLES).await;
    let mut pipe = bench.streaming().await;
    for change in [""].iter().chain(CHANGES) {
        bench.sql(change).await;
        bench.caught_up(&mut pipe).await;
        let report = bench.verify().await;
        assert!(report.is_clean(), "{change}: {:#?}", report.tables);
        for (table, compared) in ["event", "odd", "later"].iter().zip(&report.tables) {
            let rows = bench.value(&format!("select count(*) from {table}")).await;
            assert_eq!(compared.verified_rows.to_string(), rows, "{table} after {change}");
            assert_eq!(count(&bench, table).await, rows, "{table}'s view after {change}");
        }
    }
    // What was delivered comes again and changes nothing.
    within(pipe.stop()).await.unwrap();
    bench.sql("insert into event select 8, 'again' from generate_series(1, 3000)").await;
    ask(
        &bench.target(),
        &format!(
            "insert into {db}._cdcprobe_checkpoint (slot, system_identifier, timeline, lsn, stage, sequence) \
             select slot, system_identifier, timeline, lsn, stage, sequence + 1 from {db}._cdcprobe_checkpoint \
             order by sequence desc limit 1",
            db = bench.name
        ),
    )
    .await;
    let mut pipe = bench.streaming().await;
    bench.caught_up(&mut pipe).await;
    assert!(bench.verify().await.is_clean());
    // A row too many, one too few, and one that went without having come are each found.
    let target = bench.target();
    let put = async |values: &str| {
        ask(
            &target,
            &format!(
                "insert into keyless.event (n, t, _lsn, _deleted, _committed_at, _ordinal) values {values}"
            ),
        )
        .await;
        let report = bench.verify().await;
        (report.lost_rows(), report.extra_rows(), report.differing_rows())
    };
    assert_eq!(put("(5, 'kept', 1, 0, 0, 1)").await, (0, 1, 0));
    assert_eq!(put("(5, 'kept', 1, 1, 0, 2), (5, 'kept', 1, 1, 0, 3)").await, (1, 0, 0));
    assert_eq!(put("(5, 'kept', 1, 0, 0, 4), (6, 'never', 1, 1, 0, 5)").await, (0, 1, 0));
    within(pipe.stop()).await.unwrap();
    bench.lab.stop().await.unwrap();
}
