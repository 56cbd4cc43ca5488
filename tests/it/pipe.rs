//! The pipe on real servers: it loses nothing, refuses what it cannot do, and writes each value as it was.

mod changes;
mod keyless;
mod kill;
mod refusals;
mod toast;
mod transactions;
mod types;
mod views;

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use cdcprobe::{
    config::{
        BatchLimits, SourceEndpoint, TableName, TargetEndpoint, Transactions, ValuePolicies, endpoint::Host,
    },
    lab::Lab,
    pipeline::{Pipe, PipeSpec, Target, target_client},
    postgres::sql_session,
    units::{ByteSize, Lsn},
    verify::{self, TablePair, VerifyOptions, VerifyReport},
};
use tempfile::{NamedTempFile, TempPath};
use tokio_postgres::{Client, SimpleQueryMessage};

/// Long enough for a machine that is busy with other tests; whoever waits that long has failed.
const PATIENCE: Duration = Duration::from_secs(90);

/// A lab, a session of its source, and one pipe's tables, slot and target database.
struct Bench {
    lab: Lab,
    client: Client,
    name: &'static str,
    tables: Vec<&'static str>,
    values: ValuePolicies,
    transactions: Transactions,
}

impl Bench {
    /// `name` is that of slot, publication and target database; `sql` makes the tables.
    async fn start(name: &'static str, tables: &[&'static str], sql: &str) -> Bench {
        Bench::on(crate::lab::lab().await, name, tables, sql).await
    }

    async fn on(lab: Lab, name: &'static str, tables: &[&'static str], sql: &str) -> Bench {
        let client = session(&lab.source_endpoint()).await;
        client.batch_execute(sql).await.unwrap();
        Bench {
            lab,
            client,
            name,
            tables: tables.to_vec(),
            values: ValuePolicies::default(),
            transactions: Transactions::default(),
        }
    }

    fn target(&self) -> TargetEndpoint {
        TargetEndpoint { database: self.name.to_owned(), ..self.lab.target_endpoint() }
    }

    fn pipe(&self) -> Pipe {
        let tables = self.tables.iter().map(|table| table.parse().unwrap()).collect();
        let spec = PipeSpec {
            source: self.lab.source_endpoint(),
            tables,
            publication: self.name.to_owned(),
            slot: self.name.to_owned(),
            values: self.values.clone(),
            transactions: self.transactions.clone(),
            snapshot_workers: 2,
            batch: BatchLimits {
                max_bytes: ByteSize::mib(1),
                max_rows: 2_000,
                max_wait: Duration::from_millis(200),
                min_wait: Duration::from_millis(5),
                in_flight: 2,
            },
        };
        Pipe::start(spec, Target::ClickHouse(self.target()))
    }

    /// Drops slot, publication, tables and the target's database, for another pipe of the name.
    async fn forget(&self) {
        until("the walsender is gone", async || {
            self.value("select count(*) from pg_replication_slots where active").await == "0"
        })
        .await;
        self.sql(&format!("select pg_drop_replication_slot('{}')", self.name)).await;
        self.sql(&format!("drop publication {}; drop table {}", self.name, self.tables.join(", "))).await;
        ask(&self.target(), &format!("drop database {} sync", self.name)).await;
    }

    async fn streaming(&self) -> Pipe {
        let mut pipe = self.pipe();
        within(pipe.streaming()).await.unwrap();
        pipe
    }

    async fn sql(&self, statements: &str) {
        self.client.batch_execute(statements).await.unwrap_or_else(|error| panic!("{statements}: {error:?}"));
    }

    async fn value(&self, query: &str) -> String {
        value(&self.client, query).await
    }

    async fn flushed(&self) -> Lsn {
        self.value("select pg_current_wal_flush_lsn()").await.parse().unwrap()
    }

    /// Everything that is committed now has arrived.
    async fn caught_up(&self, pipe: &mut Pipe) {
        let fence = self.fence().await;
        within(pipe.durable(fence)).await.unwrap();
    }

    /// A message that ends after everything committed so far.
    async fn fence(&self) -> Lsn {
        self.value("select pg_logical_emit_message(true, 'cdcprobe', '')").await;
        self.flushed().await
    }

    async fn verify(&self) -> VerifyReport {
        let pair = |table: &&str| {
            let source: TableName = table.parse().unwrap();
            TablePair {
                target_table: cdcprobe::pipeline::target_table_name(&source),
                source,
                target_database: self.name.to_owned(),
            }
        };
        let pairs: Vec<_> = self.tables.iter().map(pair).collect();
        verify::tables(&self.lab.source_endpoint(), &self.target(), &pairs, &VerifyOptions::default())
            .await
            .unwrap()
    }

    /// 0 lost, 0 extra, 0 differing, as many rows as the source has, and no key twice.
    async fn expect_equal(&self) {
        let report = self.verify().await;
        assert!(report.is_clean(), "{:#?}", report.tables);
        for (table, compared) in self.tables.iter().zip(&report.tables) {
            let rows = self.value(&format!("select count(*) from {table}")).await;
            assert_eq!(compared.verified_rows.to_string(), rows, "{table}");
            let target = table.trim_start_matches("public.");
            let count = format!("select count() from {}.`{target}` final where _deleted = 0", self.name);
            assert_eq!(ask(&self.lab.target_endpoint(), &count).await, rows, "{table} in the target");
        }
    }

    /// The pipeline file of this pipe, small blocks, for the binary.
    fn file(&self) -> TempPath {
        file(&self.toml())
    }

    fn toml(&self) -> String {
        format!(
            "[source]\ntables = {:?}\nslot = {name:?}\npublication = {name:?}\n[target]\ndatabase = {name:?}\n\
             [snapshot]\nworkers = 1\n[batch]\nmax_rows = 2000\nmax_wait = \"200ms\"\n",
            self.tables,
            name = self.name,
        )
    }

    /// `cdcprobe pipe FILE` on the lab's servers.
    fn command(&self, file: &Path) -> Command {
        command(&self.lab, file)
    }

    async fn slot_position(&self) -> Lsn {
        let query =
            format!("select confirmed_flush_lsn from pg_replication_slots where slot_name = '{}'", self.name);
        self.value(&query).await.parse().unwrap()
    }
}

/// `cdcprobe pipe FILE` on a lab's servers; the passwords come by the environment.
fn command(lab: &Lab, file: &Path) -> Command {
    let (source, target) = (lab.source_endpoint(), lab.target_endpoint());
    let Host::Tcp { host, port } = &source.hosts[0] else { panic!("a lab listens on TCP") };
    let mut command = Command::new(env!("CARGO_BIN_EXE_cdcprobe"));
    command
        .arg("pipe")
        .arg(file)
        .arg("--set")
        .arg(format!("source.url=postgres://{}@{host}:{port}/{}", source.user, source.database))
        .arg("--set")
        .arg(format!("target.url={}", target.url))
        .env("PGPASSWORD", source.password.as_ref().unwrap().expose())
        .env("CLICKHOUSE_USER", &target.user)
        .env("CLICKHOUSE_PASSWORD", target.password.as_ref().unwrap().expose())
        .env("CDCPROBE_LOG", "warn")
        .stdin(Stdio::null());
    command
}

fn file(toml: &str) -> TempPath {
    let mut file = NamedTempFile::with_suffix(".toml").unwrap();
    file.write_all(toml.as_bytes()).unwrap();
    file.into_temp_path()
}

/// As a user's session: names without a schema are of `public`.
async fn session(endpoint: &SourceEndpoint) -> Client {
    let client = sql_session(endpoint, "test").await.unwrap();
    client.batch_execute("set search_path = public").await.unwrap();
    client
}

/// The first column of the first row, as text.
async fn value(client: &Client, query: &str) -> String {
    let messages = client.simple_query(query).await.unwrap_or_else(|error| panic!("{query}: {error:?}"));
    let row = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or_default().to_owned()),
        _ => None,
    });
    row.unwrap_or_else(|| panic!("{query}: no row"))
}

/// ClickHouse's answer as TabSeparated, without the last line's end.
async fn ask(target: &TargetEndpoint, query: &str) -> String {
    try_ask(target, query).await.unwrap_or_else(|error| panic!("{query}: {error}"))
}

async fn try_ask(target: &TargetEndpoint, query: &str) -> Result<String, clickhouse::error::Error> {
    let mut answer = target_client(target).query_raw(query).fetch_bytes("TabSeparated")?;
    let text = String::from_utf8(answer.collect().await?.to_vec()).expect("it is UTF-8");
    Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
}

async fn within<T>(wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, wait).await.expect("it comes in time")
}

/// Asks again and again until it is so.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
