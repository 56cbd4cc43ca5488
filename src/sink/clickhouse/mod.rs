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
    ddl::{CHECKPOINT_TABLE, ExistingTable, TargetColumn},
    encode::NativeBlock,
    quote::{identifier, literal, table_name, target_table},
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

    /// A table that carries our mark.
    async fn is_ours(&self, name: &str) -> anyhow::Result<bool> {
        let sql = format!(
            "select count() from system.tables where database = {} and name = {} and comment = {}",
            literal(self.database()),
            literal(name),
            literal(ddl::MARK)
        );
        Ok(self.rows::<u64>(&sql).await?.iter().any(|count| *count > 0))
    }

    async fn create_table(&self, table: &Table) -> anyhow::Result<()> {
        let sql = ddl::create_table(self.database(), table).map_err(|why| impossible(table, &why))?;
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
        let (database, name) = (literal(self.database()), literal(name));
        let sql = format!(
            "select engine, sorting_key from system.tables where database = {database} and name = {name}"
        );
        let tables: Vec<TableRow> = self.rows(&sql).await?;
        let Some(TableRow { engine, sorting_key }) = tables.into_iter().next() else { return Ok(None) };
        let sql = format!(
            "select name, type, is_in_sorting_key from system.columns where database = {database} and table = {name} \
             order by position"
        );
        let columns: Vec<ColumnRow> = self.rows(&sql).await?;
        let sorting_key = sorting_key_order(&sorting_key, &columns);
        let columns = columns
            .into_iter()
            .map(|row| TargetColumn { name: row.name, type_name: row.type_name })
            .collect();
        Ok(Some(ExistingTable { engine, sorting_key, columns }))
    }

    async fn refuse_unfit(&self, table: &Table) -> anyhow::Result<()> {
        let name = table_name(&table.schema, &table.name);
        let Some(existing) = self.existing_table(&name).await? else { return Ok(()) };
        let found = ddl::differences(table, &existing).map_err(|why| impossible(table, &why))?;
        if found.is_empty() {
            return Ok(());
        }
        let message = format!("{} exists in ClickHouse but cannot take {table}: {}", name, found.join("; "));
        Err(Failure::environment(message)
            .hint("drop or rename that table, or choose another target.database")
            .into())
    }
}

#[derive(Debug, Row, Deserialize)]
struct TableRow {
    engine: String,
    sorting_key: String,
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

fn impossible(table: &Table, why: &str) -> Failure {
    Failure::config(format!("table {table}: {why}"))
        .hint("rename the column, or leave the table out of source.tables")
}

/// Two source tables must not become one target table.
fn refuse_collisions(tables: &[Table]) -> anyhow::Result<()> {
    let mut names: Vec<_> =
        tables.iter().map(|table| (table_name(&table.schema, &table.name), table)).collect();
    names.sort_by(|a, b| a.0.cmp(&b.0));
    match names.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        None => Ok(()),
        Some(pair) => Err(Failure::config(format!(
            "tables {} and {} would both become {} in ClickHouse",
            pair[0].1, pair[1].1, pair[0].0
        ))
        .hint("leave one of them out of source.tables")
        .into()),
    }
}

impl Sink for ClickHouseSink {
    type Block = NativeBlock;

    fn block(&self, table: &Table) -> Result<NativeBlock, EncodeError> {
        Ok(NativeBlock::new(table))
    }

    async fn check(&self, tables: &[Table]) -> anyhow::Result<String> {
        if !self.endpoint.url.starts_with("http://") {
            return Err(Failure::config(format!("target.url {} is not http", self.endpoint.url))
                .hint("TLS to ClickHouse is not there yet; use http:// on a network that you trust")
                .into());
        }
        let version: Vec<String> = self.rows("select version()").await?;
        refuse_collisions(tables)?;
        for table in tables {
            ddl::target_columns(table).map_err(|why| impossible(table, &why))?;
            self.refuse_unfit(table).await?;
        }
        Ok(version.concat())
    }

    async fn occupied(&self, tables: &[Table]) -> anyhow::Result<Option<String>> {
        for table in tables {
            let sql = format!(
                "select coalesce(total_rows, 0) from system.tables where database = {} and name = {}",
                literal(self.database()),
                literal(&table_name(&table.schema, &table.name))
            );
            let rows: Vec<u64> = self.rows(&sql).await?;
            if rows.first().is_some_and(|rows| *rows > 0) {
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
        }
        Ok(())
    }

    async fn reset(&self, tables: &[Table]) -> anyhow::Result<()> {
        for table in tables {
            let target = target_table(self.database(), table);
            if self.is_ours(&table_name(&table.schema, &table.name)).await? {
                // Made anew rather than emptied: an insert of a killed process that is still under way stays behind
                // with the old table.
                self.execute(&format!("drop table {target} sync")).await?;
                self.create_table(table).await?;
            } else {
                self.execute(&format!("truncate table {target}")).await?;
            }
        }
        Ok(())
    }

    async fn remove(&self, tables: &[TableRef<'_>], slot: &str) -> anyhow::Result<()> {
        for (schema, name) in tables {
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
