//! Tables of our own: made, marked as ours, filled.
//!
//! A load writes, so it must never write into somebody's table by accident: every table that we make carries a comment,
//! and one without it is refused by name.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::{Context, Result};
use futures_util::{TryStreamExt, stream::FuturesUnordered};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio_postgres::Client;

use crate::{
    config::{SourceEndpoint, TableName},
    failure::Failure,
    postgres::{connect::sql_session, quote},
};

/// The comment of a table that we made.
pub const MARK: &str = "made by cdcprobe";
/// Sessions that fill a table: enough for the cores of a small server, few enough not to crowd it.
const FILL_SESSIONS: u64 = 4;
/// Rows of one filling statement, which is one transaction.
const FILL_CHUNK: u64 = 50_000;
/// Random bytes that payloads are cut from. Far larger than LZ4's window of 64 KiB, so that two cuts of the same place
/// rarely meet in one compressed block.
const POOL_BYTES: usize = 1 << 20;

/// What [`create_table`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableState {
    Created,
    /// It was there, made by us earlier, rows and all.
    Kept,
}

/// Makes a table of the shape of `cdc_probe`, and its schema, unless we made it earlier.
///
/// Errors: a configuration failure when there is a table of that name which is not ours.
pub async fn create_table(client: &Client, table: &TableName) -> Result<TableState> {
    if is_ours(client, table).await? {
        return Ok(TableState::Kept);
    }
    create_schema(client, &table.schema).await?;
    let columns = "id bigserial primary key, batch int, created_at timestamptz default now(), payload text";
    let name = quote::qualified(table);
    let sql = format!("create table {name} ({columns}); comment on table {name} is {}", quote::literal(MARK));
    client.batch_execute(&sql).await.with_context(|| format!("create table {table}"))?;
    Ok(TableState::Created)
}

/// Drops a table that we made; does nothing when there is none, refuses one that is not ours.
pub async fn drop_table(client: &Client, table: &TableName) -> Result<()> {
    if is_ours(client, table).await? {
        let sql = format!("drop table {}", quote::qualified(table));
        client.batch_execute(&sql).await.with_context(|| format!("drop table {table}"))?;
    }
    Ok(())
}

/// Whether the table exists and carries our mark; fails when it exists without.
pub(super) async fn is_ours(client: &Client, table: &TableName) -> Result<bool> {
    let found = client
        .query_opt(include_str!("sql/table_state.sql"), &[&table.schema, &table.name])
        .await
        .with_context(|| format!("look for table {table}"))?;
    let Some(row) = found else { return Ok(false) };
    let (kind, comment): (String, String) = (row.try_get("kind")?, row.try_get("comment")?);
    if kind == "r" && comment.starts_with(MARK) {
        return Ok(true);
    }
    Err(foreign(table).into())
}

/// A table has the name that a load wants, and is not ours.
pub fn foreign(table: &TableName) -> Failure {
    Failure::config(format!("table {table} exists and was not made by cdcprobe"))
        .hint("name a table that does not exist yet, or drop this one yourself")
}

async fn create_schema(client: &Client, schema: &str) -> Result<()> {
    let known = client.query_opt("select from pg_namespace where nspname = $1", &[&schema]).await?;
    if known.is_none() {
        let sql = format!("create schema {}", quote::identifier(schema));
        client.batch_execute(&sql).await.with_context(|| format!("create schema {schema}"))?;
    }
    Ok(())
}

/// Adds `rows` rows with payloads of `payload_bytes` to a table made by [`create_table`], on the server and by several
/// sessions, then vacuums and analyses it. `progress` hears of the rows done so far, after every chunk.
pub async fn fill(
    endpoint: &SourceEndpoint,
    table: &TableName,
    rows: u64,
    payload_bytes: u32,
    progress: impl Fn(u64),
) -> Result<()> {
    let chunks = rows.div_ceil(FILL_CHUNK);
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let pool = random_pool(POOL_BYTES.max(payload_bytes as usize));
    let fillers: FuturesUnordered<_> = (0..FILL_SESSIONS.min(chunks))
        .map(async |_| {
            let client = sql_session(endpoint, "cdcprobe fill").await?;
            let sql = include_str!("sql/fill.sql").replace("{table}", &quote::qualified(table));
            let statement = client.prepare(&sql).await.context("prepare the filling INSERT")?;
            loop {
                let first = next.fetch_add(1, Relaxed) * FILL_CHUNK + 1;
                if first > rows {
                    return anyhow::Ok(());
                }
                let last = (first + FILL_CHUNK - 1).min(rows);
                let bounds = (first as i64, last as i64);
                let length = payload_bytes as i32;
                let added = client.execute(&statement, &[&bounds.0, &bounds.1, &length, &pool]).await;
                let added = added.with_context(|| format!("fill table {table}"))?;
                progress(done.fetch_add(added, Relaxed) + added);
            }
        })
        .collect();
    fillers.try_collect::<Vec<()>>().await?;
    let client = sql_session(endpoint, "cdcprobe fill").await?;
    let vacuum = format!("vacuum (analyze) {}", quote::qualified(table));
    client.batch_execute(&vacuum).await.with_context(|| format!("vacuum table {table}"))
}

/// The same bytes for every fill, so that two fills of one size are equal.
fn random_pool(bytes: usize) -> Vec<u8> {
    let mut random = SmallRng::seed_from_u64(1);
    let mut pool = vec![0; bytes];
    random.fill(&mut pool[..]);
    pool
}
