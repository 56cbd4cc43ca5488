//! What the pipe refuses: the exit code, the thing's name, a hint, and servers that are left as they were.

use std::{path::Path, process::Output};

use cdcprobe::lab::{Lab, LabOptions};

use super::{Bench, ask, command, file, value, within};

/// Everything of both servers that a refused pipe could have changed.
async fn state(bench: &Bench) -> String {
    let source = "select jsonb_build_object(
        'slots', (select jsonb_agg(jsonb_build_array(slot_name, confirmed_flush_lsn) order by slot_name)
                  from pg_replication_slots),
        'publications', (select jsonb_agg(pubname order by pubname) from pg_publication))::text";
    let target = "select arraySort(groupArray(x)) from (
        select concat('database ', name) as x from system.databases
        where name not in ('system', 'information_schema', 'INFORMATION_SCHEMA')
        union all
        select concat(database, '.', name, ' ', toString(total_rows)) as x from system.tables
        where database not in ('system', 'information_schema', 'INFORMATION_SCHEMA'))";
    format!("{}\n{}", bench.value(source).await, ask(&bench.lab.target_endpoint(), target).await)
}

struct Case {
    name: &'static str,
    toml: String,
    extra: Vec<String>,
    env: Vec<(&'static str, &'static str)>,
    exit: i32,
    /// What the message names.
    names: Vec<&'static str>,
}

fn toml(tables: &str, slot: &str) -> String {
    format!(
        "[source]\ntables = [\"{tables}\"]\nslot = \"{slot}\"\npublication = \"{slot}\"\n[target]\ndatabase = \"{slot}\"\n"
    )
}

impl Case {
    fn new(name: &'static str, toml: String, exit: i32, names: &[&'static str]) -> Case {
        Case { name, toml, extra: Vec::new(), env: Vec::new(), exit, names: names.to_vec() }
    }

    fn set(mut self, assignment: String) -> Case {
        self.extra.extend(["--set".to_owned(), assignment]);
        self
    }

    fn env(mut self, name: &'static str, value: &'static str) -> Case {
        self.env.push((name, value));
        self
    }

    async fn check(&self, bench: &Bench) {
        let before = state(bench).await;
        let file = file(&self.toml);
        let output = self.run(&bench.lab, &file).await;
        self.expect(&output, "");
        assert!(output.stdout.is_empty(), "{}: {output:?}", self.name);
        assert_eq!(state(bench).await, before, "{}: something has changed", self.name);
    }

    async fn run(&self, lab: &Lab, file: &Path) -> Output {
        let mut command = command(lab, file);
        command.args(["--until-caught-up"]).args(&self.extra).envs(self.env.iter().copied());
        within(tokio::task::spawn_blocking(move || command.output().unwrap())).await.unwrap()
    }

    fn expect(&self, output: &Output, secret: &str) {
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(self.exit), "{}: {stderr}", self.name);
        for name in &self.names {
            assert!(stderr.contains(name), "{}: {name:?} is not named: {stderr}", self.name);
        }
        assert!(
            stderr.contains("\nhint: ") || stderr.starts_with("hint: "),
            "{}: no hint: {stderr}",
            self.name
        );
        assert!(secret.is_empty() || !stderr.contains(secret), "{}: a password is shown", self.name);
    }
}

const TABLES: &str = "
    create table good (id int primary key, t text);
    create table no_key (id int);
    create table odd (id int primary key, _lsn int);
    create table kept (id int primary key, t text);
    create table shaped (id int primary key, t text);
    create table doubled (id int primary key, n int generated always as (id * 2) stored);
    create unlogged table fleeting (id int primary key);
    insert into good values (1, 'x'); insert into kept values (1, 'x'); insert into shaped values (1, 'x');
    insert into no_key values (1); insert into odd values (1, 1);
    create publication partial for table good";

/// A port on which nobody listens: it was free a moment ago.
fn closed_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn plain_cases() -> Vec<Case> {
    let good = || toml("good", "refused");
    let mut partial = toml("kept", "refused");
    partial = partial.replace("publication = \"refused\"", "publication = \"partial\"");
    vec![
        Case::new("wrong password", good(), 3, &["password", "postgres"]).env("PGPASSWORD", "mistaken"),
        Case::new("wrong ClickHouse password", good(), 3, &["ClickHouse", "refuses user"])
            .env("CLICKHOUSE_PASSWORD", "mistaken"),
        Case::new("ClickHouse is not there", good(), 3, &["ClickHouse", "cannot be reached"])
            .set(format!("target.url=http://127.0.0.1:{}", closed_port())),
        Case::new("PostgreSQL is not there", good(), 3, &["127.0.0.1"])
            .set(format!("source.url=postgres://postgres@127.0.0.1:{}/postgres", closed_port())),
        Case::new("missing database", good(), 3, &["nowhere"]).set("source.url=nowhere".to_owned()),
        Case::new("unknown key", format!("{}tabels = 1\n", good()), 2, &["tabels"]),
        Case::new("unknown key by --set", good(), 2, &["max_row"]).set("batch.max_row=1".to_owned()),
        Case::new("no key", toml("no_key", "refused"), 2, &["public.no_key", "primary key"]),
        Case::new("a name of ours", toml("odd", "refused"), 2, &["public.odd", "column _lsn"]),
        Case::new("missing table", toml("absent", "refused"), 2, &["public.absent", "does not exist"]),
        Case::new("unlogged table", toml("fleeting", "refused"), 2, &["public.fleeting", "unlogged"]),
        Case::new("generated column", toml("doubled", "refused"), 2, &["public.doubled", "column n"]),
        Case::new("publication without the table", partial, 2, &["partial", "public.kept"]),
        Case::new("slot's name", toml("good", "Not-A-Name"), 2, &["Not-A-Name"]),
        Case::new("no table", toml("good", "refused").replace("\"good\"", ""), 2, &["source.tables"]),
        Case::new("slot without checkpoint", toml("good", "stray"), 5, &["stray", "no checkpoint"]),
        Case::new("other shape", toml("shaped", "shapes"), 3, &["shaped", "exists in ClickHouse"]),
        Case::new("rows of somebody else", toml("kept", "occupied"), 2, &["public.kept", "occupied"]),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_are_clear_and_change_nothing() {
    let bench = Bench::start("refused", &["public.good"], TABLES).await;
    let target = bench.lab.target_endpoint();
    bench.value("select pg_create_logical_replication_slot('stray', 'pgoutput')").await;
    for statement in [
        "create database shapes",
        "create table shapes.shaped (id Int32, t String) engine = MergeTree order by id",
        "create database occupied",
        "create table occupied.kept (id Int32, t Nullable(String), _lsn UInt64, _deleted UInt8, _committed_at DateTime64(6, 'UTC')) engine = ReplacingMergeTree(_lsn, _deleted) order by id",
        "insert into occupied.kept values (7, 'theirs', 0, 0, 0)",
    ] {
        ask(&target, statement).await;
    }
    for mut case in plain_cases() {
        if case.name == "missing database" {
            let endpoint = bench.lab.source_endpoint();
            let cdcprobe::config::endpoint::Host::Tcp { port, .. } = &endpoint.hosts[0] else {
                panic!("TCP")
            };
            case.extra[1] = format!("source.url=postgres://postgres@127.0.0.1:{port}/nowhere");
        }
        case.check(&bench).await;
    }
    lost_slots(&bench).await;
    errors_as_json(&bench).await;
    bench.lab.stop().await.unwrap();
}

/// A pipe that has been there, and whose slot somebody has touched since.
async fn lost_slots(bench: &Bench) {
    let run = Case::new("a first run", toml("kept", "moved"), 0, &[]);
    let output = run.run(&bench.lab, &file(&run.toml)).await;
    assert!(output.status.success(), "{output:?}");
    bench.sql("insert into kept select g, 'behind our back' from generate_series(2, 50) g").await;
    bench.value("select pg_replication_slot_advance('moved', pg_current_wal_flush_lsn())").await;
    Case::new("slot advanced", toml("kept", "moved"), 5, &["moved", "ahead"]).check(bench).await;
    bench.value("select pg_drop_replication_slot('moved')").await;
    Case::new("slot dropped", toml("kept", "moved"), 5, &["moved", "missing"]).check(bench).await;
    bench.value("select pg_create_logical_replication_slot('moved', 'pgoutput')").await;
    Case::new("slot made anew", toml("kept", "moved"), 5, &["moved", "made anew"]).check(bench).await;
}

async fn errors_as_json(bench: &Bench) {
    for (case, kind) in [
        (Case::new("json", toml("no_key", "refused"), 2, &["public.no_key"]), "configuration"),
        (Case::new("json", toml("good", "stray"), 5, &["stray"]), "source cannot go on"),
        (Case::new("json", "nonsense".to_owned(), 2, &["nonsense"]), "configuration"),
    ] {
        let case = Case { extra: vec!["--json".to_owned()], ..case };
        let output = case.run(&bench.lab, &file(&case.toml)).await;
        case.expect(&output, "");
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let error = &json["error"];
        assert_eq!((&error["kind"], &error["exit_code"]), (&kind.into(), &case.exit.into()), "{json}");
        assert!(error["message"].as_str().unwrap().contains(case.names[0]), "{json}");
        assert!(error["hint"].is_string(), "{json}");
    }
}

#[tokio::test]
async fn wal_level_replica_is_refused() {
    let settings = vec![("wal_level".to_owned(), "replica".to_owned())];
    let lab = Lab::start(&LabOptions { postgres_settings: settings, ..crate::lab::options() }).await.unwrap();
    let bench = Bench::on(lab, "refused", &["public.good"], "create table good (id int primary key)").await;
    Case::new("wal_level", toml("good", "refused"), 3, &["wal_level", "replica", "logical"])
        .check(&bench)
        .await;
    assert_eq!(value(&bench.client, "select count(*) from pg_replication_slots").await, "0");
    bench.lab.stop().await.unwrap();
}
