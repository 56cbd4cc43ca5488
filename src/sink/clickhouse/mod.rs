//! ClickHouse over HTTP: ReplacingMergeTree tables, Native blocks, a checkpoint table beside them.

pub mod array;
pub mod ddl;
pub mod encode;
pub mod insert;
mod lookup;
pub mod numeric;
pub mod quote;
pub mod text;
pub mod types;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::Context;
use clickhouse::{Client, Compression, Row};
use serde::Deserialize;

use self::{
    ddl::{CHECKPOINT_TABLE, ExistingTable, Place, TargetColumn},
    encode::NativeBlock,
    quote::{identifier, literal, table_name, target_table, view_name},
};
use super::{Checkpoint, EncodeError, PartialRow, Sink, SinkError, Stage, TableRef};
use crate::{
    change::{Table, Value},
    config::TargetEndpoint,
    failure::Failure,
    units::Lsn,
};

/// A client for an endpoint, for the sink and for whoever reads the target.
pub fn client(endpoint: &TargetEndpoint) -> Client {
    let compression = if endpoint.compression { Compression::Lz4 } else { Compression::None };
    let client = Client::default()
        .with_url(&endpoint.url)
        .with_user(&endpoint.user)
        .with_compression(compression)
        .with_product_info("cdcprobe", env!("CARGO_PKG_VERSION"));
    match &endpoint.password {
        Some(password) => client.with_password(password.expose()),
        None => client,
    }
}

/// An error of ClickHouse or of the way to it, as the user should read it.
pub fn explain(endpoint: &TargetEndpoint, error: clickhouse::error::Error) -> anyhow::Error {
    use clickhouse::error::Error;
    let at = &endpoint.url;
    match error {
        Error::Network(cause) => Failure::environment(format!(
            "ClickHouse at {at} cannot be reached: {}",
            innermost(cause.as_ref())
        ))
        .hint("is the server running, and is target.url its HTTP port (8123 by default)?")
        .into(),
        Error::TimedOut => Failure::environment(format!("ClickHouse at {at} did not answer in time"))
            .hint("raise target.timeout, or see what the server is busy with")
            .into(),
        Error::BadResponse(text) => match insert::exception_code(&text) {
            Some(516 | 193 | 194 | 192) => {
                Failure::environment(format!("ClickHouse at {at} refuses user {}", endpoint.user))
                    .hint("check target.url's user, and the password (CLICKHOUSE_PASSWORD)")
                    .into()
            }
            Some(497) => Failure::environment(format!("ClickHouse at {at}: {}", first_line(&text)))
                .hint(format!("grant the missing right to {}", endpoint.user))
                .into(),
            _ => Failure::environment(format!("ClickHouse at {at}: {}", first_line(&text))).into(),
        },
        other => Failure::environment(format!("ClickHouse at {at}: {other}")).into(),
    }
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// The sink into one database of one server.
pub struct ClickHouseSink {
    endpoint: TargetEndpoint,
    client: Client,
    /// Deduplication tokens: a random part that no other process has, and a counter.
    token_prefix: u64,
    token_counter: AtomicU64,
}

impl ClickHouseSink {
    /// Connects to nothing yet.
    pub fn new(endpoint: TargetEndpoint) -> Self {
        let client = client(&endpoint);
        ClickHouseSink { endpoint, client, token_prefix: rand::random(), token_counter: AtomicU64::new(0) }
    }

    fn database(&self) -> &str {
        &self.endpoint.database
    }

    fn checkpoint_table(&self) -> String {
        format!("{}.{}", identifier(self.database()), identifier(CHECKPOINT_TABLE))
    }

    async fn execute(&self, sql: &str) -> anyhow::Result<()> {
        self.client.query_raw(sql).execute().await.map_err(|error| explain(&self.endpoint, error))
    }

    async fn rows<T>(&self, sql: &str) -> anyhow::Result<Vec<T>>
    where
        T: clickhouse::RowOwned + clickhouse::RowRead,
    {
        self.client.query_raw(sql).fetch_all::<T>().await.map_err(|error| explain(&self.endpoint, error))
    }

    /// A table, and no view, that carries our mark.
    async fn is_ours(&self, name: &str) -> anyhow::Result<bool> {
        Ok(self.object(name).await?.is_some_and(|object| object.is_ours() && !object.is_view()))
    }

    /// Whatever has this name in the database.
    async fn object(&self, name: &str) -> anyhow::Result<Option<ObjectRow>> {
        let sql = format!(
            "select engine, sorting_key, comment, coalesce(total_rows, 0) as rows from system.tables \
             where database = {} and name = {}",
            literal(self.database()),
            literal(name)
        );
        Ok(self.rows(&sql).await?.into_iter().next())
    }

    /// What there is already where a table's rows and its view are to go; changes nothing.
    pub async fn place(&self, table: &Table) -> anyhow::Result<Place> {
        let view = self.object(&view_name(&table.schema, &table.name)).await?;
        Ok(Place {
            table: self.existing_table(&table_name(&table.schema, &table.name)).await?,
            view_is_ours: view.map(|view| view.is_ours() && view.is_view()),
        })
    }

    /// The version, when the server answers and the way to it is one that we go.
    pub async fn version(&self) -> anyhow::Result<String> {
        if !self.endpoint.url.starts_with("http://") {
            return Err(Failure::config(format!("target.url {} is not http", self.endpoint.url))
                .hint("TLS to ClickHouse is not there yet; use http:// on a network that you trust")
                .into());
        }
        Ok(self.rows::<String>("select version()").await?.concat())
    }

    pub async fn database_exists(&self) -> anyhow::Result<bool> {
        let sql = format!("select count() from system.databases where name = {}", literal(self.database()));
        Ok(self.rows::<u64>(&sql).await?.iter().any(|count| *count > 0))
    }

    /// Whether the user has a right, written as `GRANT` takes it; `None`: the server has no `CHECK GRANT`.
    pub async fn is_granted(&self, right: &str) -> anyhow::Result<Option<bool>> {
        const SYNTAX_ERROR: u32 = 62;
        let answer = match self.client.query_raw(&format!("check grant {right}")).fetch_bytes("TabSeparated")
        {
            Ok(mut cursor) => cursor.collect().await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(bytes) => Ok(Some(bytes.trim_ascii() == b"1")),
            Err(clickhouse::error::Error::BadResponse(text))
                if insert::exception_code(&text).is_some_and(|code| code == SYNTAX_ERROR) =>
            {
                Ok(None)
            }
            Err(error) => Err(explain(&self.endpoint, error)),
        }
    }

    /// The view beside a table of ours, as `target.views` wants it; what has its name and is not ours is left alone.
    async fn create_view(&self, table: &Table) -> anyhow::Result<()> {
        if !self.endpoint.views || !self.is_ours(&table_name(&table.schema, &table.name)).await? {
            return Ok(());
        }
        let name = view_name(&table.schema, &table.name);
        if self.object(&name).await?.is_some_and(|object| !object.is_ours() || !object.is_view()) {
            let message = format!("{name} has appeared in ClickHouse and is no view that cdcprobe made");
            return Err(Failure::environment(message).hint("rename it, or set target.views = false").into());
        }
        let sql = ddl::create_view(self.database(), table).map_err(|why| ddl::impossible(table, &why))?;
        self.execute(&sql).await.with_context(|| format!("create view {name} (target.views)"))
    }

    async fn drop_view(&self, schema: &str, name: &str) -> anyhow::Result<()> {
        let view = view_name(schema, name);
        if self.object(&view).await?.is_some_and(|object| object.is_ours() && object.is_view()) {
            let view = format!("{}.{}", identifier(self.database()), identifier(&view));
            self.execute(&format!("drop view {view} sync")).await?;
        }
        Ok(())
    }

    async fn create_table(&self, table: &Table) -> anyhow::Result<()> {
        let sql = ddl::create_table(self.database(), table).map_err(|why| ddl::impossible(table, &why))?;
        let query = self.client.query_raw(&sql).with_setting("enable_time_time64_type", "1");
        query.execute().await.map_err(|error| explain(&self.endpoint, error)).context("create a target table")
    }

    async fn has_checkpoints(&self) -> anyhow::Result<bool> {
        let sql = format!(
            "select count() from system.tables where database = {} and name = {}",
            literal(self.database()),
            literal(CHECKPOINT_TABLE)
        );
        Ok(self.rows::<u64>(&sql).await?.iter().any(|count| *count > 0))
    }

    async fn existing_table(&self, name: &str) -> anyhow::Result<Option<ExistingTable>> {
        let Some(object) = self.object(name).await? else { return Ok(None) };
        let (database, name) = (literal(self.database()), literal(name));
        let sql = format!(
            "select name, type, is_in_sorting_key from system.columns where database = {database} and table = {name} \
             order by position"
        );
        let columns: Vec<ColumnRow> = self.rows(&sql).await?;
        let sorting_key = sorting_key_order(&object.sorting_key, &columns);
        let columns = columns
            .into_iter()
            .map(|row| TargetColumn { name: row.name, type_name: row.type_name })
            .collect();
        let (is_ours, rows) = (object.is_ours(), object.rows);
        Ok(Some(ExistingTable { engine: object.engine, is_ours, rows, sorting_key, columns }))
    }
}

#[derive(Debug, Row, Deserialize)]
struct ObjectRow {
    engine: String,
    sorting_key: String,
    comment: String,
    rows: u64,
}

impl ObjectRow {
    /// It carries our mark.
    fn is_ours(&self) -> bool {
        self.comment == ddl::MARK
    }

    fn is_view(&self) -> bool {
        self.engine == "View"
    }
}

#[derive(Debug, Row, Deserialize)]
struct ColumnRow {
    name: String,
    #[serde(rename = "type")]
    type_name: String,
    is_in_sorting_key: u8,
}

/// The key columns in the order in which the sorting key's text names them.
fn sorting_key_order(key: &str, columns: &[ColumnRow]) -> Vec<String> {
    let quoted = |name: &str| [name.to_owned(), identifier(name)];
    let position = |name: &str| {
        key.split(", ")
            .position(|part| quoted(name).iter().any(|quoted| quoted == part))
            .unwrap_or(usize::MAX)
    };
    let mut names: Vec<_> = columns
        .iter()
        .filter(|column| column.is_in_sorting_key == 1)
        .map(|column| column.name.clone())
        .collect();
    names.sort_by_key(|name| position(name));
    names
}

impl Sink for ClickHouseSink {
    type Block = NativeBlock;

    fn block(&self, table: &Table) -> Result<NativeBlock, EncodeError> {
        Ok(NativeBlock::new(table))
    }

    async fn check(&self, tables: &[Table]) -> anyhow::Result<String> {
        let version = self.version().await?;
        let mut failures = ddl::collisions(tables, self.endpoint.views);
        for table in tables {
            let place = self.place(table).await?;
            failures.extend(ddl::failures(self.database(), table, &place, self.endpoint.views));
        }
        match failures.into_iter().next() {
            Some(first) => Err(first.into()),
            None => Ok(version),
        }
    }

    async fn occupied(&self, tables: &[Table]) -> anyhow::Result<Option<String>> {
        for table in tables {
            let object = self.object(&table_name(&table.schema, &table.name)).await?;
            if object.is_some_and(|object| object.rows > 0) {
                return Ok(Some(table.to_string()));
            }
        }
        Ok(None)
    }

    async fn prepare(&self, tables: &[Table]) -> anyhow::Result<()> {
        let database = identifier(self.database());
        self.execute(&format!("create database if not exists {database}"))
            .await
            .context("create the database")?;
        let checkpoint = include_str!("sql/create_checkpoint_table.sql")
            .replace("{database}", &database)
            .replace("{table}", &identifier(CHECKPOINT_TABLE));
        self.execute(&checkpoint).await.context("create the checkpoint table")?;
        for table in tables {
            self.create_table(table).await?;
            self.create_view(table).await?;
        }
        Ok(())
    }

    async fn reset(&self, tables: &[Table]) -> anyhow::Result<()> {
        for table in tables {
            let target = target_table(self.database(), table);
            if self.is_ours(&table_name(&table.schema, &table.name)).await? {
                // Made anew rather than emptied: an insert of a killed process that is still under way stays behind
                // with the old table.
                self.drop_view(&table.schema, &table.name).await?;
                self.execute(&format!("drop table {target} sync")).await?;
                self.create_table(table).await?;
                self.create_view(table).await?;
            } else {
                self.execute(&format!("truncate table {target}")).await?;
            }
        }
        Ok(())
    }

    async fn remove(&self, tables: &[TableRef<'_>], slot: &str) -> anyhow::Result<()> {
        for (schema, name) in tables {
            self.drop_view(schema, name).await?;
            let name = table_name(schema, name);
            if self.is_ours(&name).await? {
                let table = format!("{}.{}", identifier(self.database()), identifier(&name));
                self.execute(&format!("drop table {table} sync")).await?;
            }
        }
        if self.has_checkpoints().await? {
            let table = self.checkpoint_table();
            let sql = format!(
                "alter table {table} delete where slot = {} settings mutations_sync = 2",
                literal(slot)
            );
            self.execute(&sql).await?;
        }
        Ok(())
    }

    async fn write(&self, table: &Table, block: &mut NativeBlock) -> Result<(), SinkError> {
        let token = || format!("{:016x}-{}", self.token_prefix, self.token_counter.fetch_add(1, Relaxed));
        let sealed = block.seal(token);
        insert::native(&self.client, &target_table(self.database(), table), sealed, &self.endpoint).await?;
        block.clear_sealed();
        Ok(())
    }

    fn key<'a>(
        &self,
        table: &Table,
        values: impl Iterator<Item = Value<'a>>,
    ) -> Result<Vec<u8>, EncodeError> {
        lookup::key(table, values)
    }

    async fn complete(
        &self,
        table: &Table,
        rows: &[PartialRow],
        block: &mut NativeBlock,
    ) -> Result<(), SinkError> {
        lookup::complete(&self.client, self.database(), table, rows, block).await
    }

    async fn truncate(&self, table: &Table, before: Lsn) -> Result<(), SinkError> {
        let target = target_table(self.database(), table);
        let sql =
            format!("alter table {target} delete where _lsn < {} settings mutations_sync = 2", before.0);
        self.client.query_raw(&sql).execute().await.map_err(insert::sort_error)
    }

    async fn load_checkpoint(&self, slot: &str) -> anyhow::Result<Option<Checkpoint>> {
        if !self.has_checkpoints().await? {
            return Ok(None);
        }
        let sql = format!(
            "select slot, system_identifier, timeline, lsn, toString(stage) as stage, sequence from {} where slot = {} \
             order by sequence desc limit 1",
            self.checkpoint_table(),
            literal(slot)
        );
        let rows: Vec<CheckpointRow> = self.rows(&sql).await?;
        rows.into_iter().next().map(CheckpointRow::into_checkpoint).transpose()
    }

    async fn store_checkpoint(&self, checkpoint: &Checkpoint) -> Result<(), SinkError> {
        let sql = format!(
            "insert into {} (slot, system_identifier, timeline, lsn, stage, sequence) settings async_insert = 0 \
             values ({}, {}, {}, {}, {}, {})",
            self.checkpoint_table(),
            literal(&checkpoint.slot),
            checkpoint.system_identifier,
            checkpoint.timeline,
            checkpoint.lsn.0,
            literal(stage_name(checkpoint.stage)),
            checkpoint.sequence,
        );
        self.client.query_raw(&sql).execute().await.map_err(insert::sort_error)
    }
}

#[derive(Debug, Row, Deserialize)]
struct CheckpointRow {
    slot: String,
    system_identifier: u64,
    timeline: u32,
    lsn: u64,
    stage: String,
    sequence: u64,
}

fn stage_name(stage: Stage) -> &'static str {
    match stage {
        Stage::Snapshot => "snapshot",
        Stage::Streaming => "streaming",
    }
}

impl CheckpointRow {
    fn into_checkpoint(self) -> anyhow::Result<Checkpoint> {
        let stage =
            [Stage::Snapshot, Stage::Streaming].into_iter().find(|stage| stage_name(*stage) == self.stage);
        let stage = stage
            .with_context(|| format!("the checkpoint's stage is {:?}, which is not known", self.stage))?;
        Ok(Checkpoint {
            slot: self.slot,
            system_identifier: self.system_identifier,
            timeline: self.timeline,
            lsn: Lsn(self.lsn),
            stage,
            sequence: self.sequence,
        })
    }
}
