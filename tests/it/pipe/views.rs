//! The views for people: made with the tables, right, never over somebody else's object, and gone with the pipe.

use cdcprobe::{
    failure::{Failure, Kind},
    pipeline::{self, PipeSpec, Target},
};

use super::{Bench, ask, try_ask, within};

const TABLES: &str = r#"
    create schema app;
    create table plain (id int primary key, t text, tags text[]);
    create table app."it's `a` \ ""b""" ("Id" int primary key, "a`b\c" text not null);
    insert into plain values (1, 'one', null), (2, 'two', '{}'), (3, 'three', '{a,null}');
    insert into app."it's `a` \ ""b""" values (1, 'x')"#;

const PLAIN: &str = "select * from viewed.plain_current order by id";
const ODD: &str = r#"select * from viewed.`app.it's \`a\` \\ "b"_current` order by `Id`"#;

async fn objects(bench: &Bench) -> String {
    let sql =
        format!("select arraySort(groupArray(name)) from system.tables where database = '{}'", bench.name);
    ask(&bench.target(), &sql).await
}

fn spec(bench: &Bench) -> PipeSpec {
    PipeSpec {
        source: bench.lab.source_endpoint(),
        tables: bench.tables.iter().map(|table| table.parse().unwrap()).collect(),
        publication: bench.name.to_owned(),
        slot: bench.name.to_owned(),
        snapshot_workers: 1,
        batch: pipeline_batch(),
        transactions: bench.transactions.clone(),
        values: Default::default(),
    }
}

fn pipeline_batch() -> cdcprobe::config::BatchLimits {
    let none = std::collections::BTreeMap::new();
    cdcprobe::config::load::parse("x", "x", "", &[], &none).unwrap().batch
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn views_show_the_rows_of_now_and_nothing_of_ours() {
    let odd = r#"app."it's `a` \ ""b""""#;
    let bench = Bench::start("viewed", &["public.plain", odd], TABLES).await;
    let mut pipe = bench.streaming().await;
    let target = bench.target();
    assert_eq!(ask(&target, PLAIN).await, "1\tone\t[]\ttrue\n2\ttwo\t[]\tfalse\n3\tthree\t['a',NULL]\tfalse");
    assert_eq!(ask(&target, ODD).await, "1\tx");
    bench.sql("update plain set t = 'ein' where id = 1; delete from plain where id = 2; update plain set id = 4 where id = 3").await;
    bench
        .sql(r#"delete from app."it's `a` \ ""b"""; insert into app."it's `a` \ ""b""" values (2, 'y')"#)
        .await;
    bench.caught_up(&mut pipe).await;
    assert_eq!(ask(&target, PLAIN).await, "1\tein\t[]\ttrue\n4\tthree\t['a',NULL]\tfalse");
    assert_eq!(ask(&target, ODD).await, "2\ty");
    let report = bench.verify().await;
    assert!(report.is_clean(), "{:#?}", report.tables);
    within(pipe.stop()).await.unwrap();
    // A second start finds its own views, and the third has nothing to do.
    within(bench.streaming().await.stop()).await.unwrap();
    pipeline::remove(&spec(&bench), &Target::ClickHouse(bench.target())).await.unwrap();
    assert_eq!(objects(&bench).await, "['_cdcprobe_checkpoint']");
    bench.lab.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_the_views_name_is_refused_and_left_alone() {
    let sql = "create table x (id int primary key); create table x_current (id int primary key);
        insert into x values (1); insert into x_current values (7)";
    let mut bench = Bench::start("foreign_view", &["public.x"], sql).await;
    let target = bench.target();
    ask(&target, "create database foreign_view").await;
    for (foreign, drop) in [
        ("create view foreign_view.x_current as select 42 as answer", "drop view foreign_view.x_current"),
        (
            "create table foreign_view.x_current (answer Int32) engine = MergeTree order by answer as select 42 \
             comment 'made by cdcprobe'",
            "drop table foreign_view.x_current",
        ),
    ] {
        ask(&target, foreign).await;
        let error = within(bench.pipe().streaming()).await.unwrap_err();
        let failure = Failure::find(&error).expect("a failure");
        assert_eq!(failure.kind, Kind::Environment, "{error:#}");
        assert!(failure.message.contains("x_current exists"), "{failure}");
        assert!(failure.hint.as_deref().unwrap().contains("target.views"), "{failure:?}");
        assert_eq!(ask(&target, "select answer from foreign_view.x_current").await, "42");
        assert_eq!(objects(&bench).await, "['x_current']", "nothing is made beside it");
        // Removing what a pipe made leaves it alone as well.
        pipeline::remove(&spec(&bench), &Target::ClickHouse(bench.target())).await.unwrap();
        assert_eq!(ask(&target, "select answer from foreign_view.x_current").await, "42");
        ask(&target, drop).await;
    }
    // A source table of that name, in the same pipe.
    bench.tables.push("public.x_current");
    let error = within(bench.pipe().streaming()).await.unwrap_err();
    let failure = Failure::find(&error).expect("a failure");
    assert_eq!(failure.kind, Kind::Config, "{error:#}");
    assert!(
        failure.message.contains("public.x ") && failure.message.contains("public.x_current"),
        "{failure}"
    );
    // Without views both are followed.
    let mut spec = spec(&bench);
    spec.slot = "foreign_view_off".to_owned();
    let target = cdcprobe::config::TargetEndpoint { views: false, ..bench.target() };
    let mut pipe = pipeline::Pipe::start(spec, Target::ClickHouse(target));
    within(pipe.streaming()).await.unwrap();
    bench.expect_equal().await;
    assert_eq!(objects(&bench).await, "['_cdcprobe_checkpoint','x','x_current']");
    assert!(try_ask(&bench.target(), "select * from foreign_view.x_current_current").await.is_err());
    within(pipe.stop()).await.unwrap();
    bench.lab.stop().await.unwrap();
}

/// A table that was there before and fits is filled, but gets no view: it is not ours to add to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_of_somebody_else_gets_no_view() {
    let sql = "create table theirs (id int primary key); insert into theirs values (1)";
    let bench = Bench::start("not_ours", &["public.theirs"], sql).await;
    let target = bench.target();
    ask(&target, "create database not_ours").await;
    let table = "create table not_ours.theirs (id Int32, _lsn UInt64, _deleted UInt8, \
        _committed_at DateTime64(6, 'UTC')) engine = ReplacingMergeTree(_lsn, _deleted) order by id";
    ask(&target, table).await;
    let pipe = bench.streaming().await;
    bench.expect_equal().await;
    assert_eq!(objects(&bench).await, "['_cdcprobe_checkpoint','theirs']");
    within(pipe.stop()).await.unwrap();
    bench.lab.stop().await.unwrap();
}
