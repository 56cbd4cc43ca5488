//! `simple-update`: pgbench's transaction of that name on pgbench's tables, with the same statements and round trips
//! as `pgbench -N -M prepared` (manual, page pgbench, built-in scripts).

use anyhow::{Context, Result};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio_postgres::{Client, Statement, types::ToSql};

use super::table::{self, TableState};
use crate::{config::TableName, postgres::quote};

/// Every session of ours has an empty search path, so the statements name the schema.
pub const SCHEMA: &str = "public";
const ACCOUNTS: &str = "pgbench_accounts";
pub const TABLES: [&str; 4] = [ACCOUNTS, "pgbench_branches", "pgbench_tellers", "pgbench_history"];
const ACCOUNTS_PER_SCALE: i32 = 100_000;
const TELLERS_PER_SCALE: i32 = 10;

/// Makes and fills pgbench's tables at `scale` as `pgbench -i` does, in schema `public`. Tables that we made earlier at
/// the same scale are kept as they are.
///
/// Errors: a configuration failure when one of them exists and is not ours.
pub async fn create_tables(client: &Client, scale: u32) -> Result<TableState> {
    let mut kept = 0;
    for name in TABLES {
        kept += u32::from(table::is_ours(client, &TableName::new(SCHEMA, name)).await?);
    }
    let mark = format!("{}, pgbench scale {scale}", table::MARK);
    if kept == TABLES.len() as u32 && comment(client).await? == mark {
        return Ok(TableState::Kept);
    }
    let sql = include_str!("sql/pgbench_tables.sql").replace("{scale}", &scale.to_string());
    client
        .batch_execute(&sql.replace("{mark}", &quote::literal(&mark)))
        .await
        .context("make pgbench's tables")?;
    let tables = TABLES.map(|name| format!("{SCHEMA}.{name}")).join(", ");
    client.batch_execute(&format!("vacuum (analyze) {tables}")).await.context("vacuum pgbench's tables")?;
    Ok(TableState::Created)
}

async fn comment(client: &Client) -> Result<String> {
    let parameters: [&(dyn ToSql + Sync); 2] = [&SCHEMA, &ACCOUNTS];
    let row = client.query_one(include_str!("sql/table_state.sql"), &parameters).await?;
    Ok(row.try_get("comment")?)
}

/// One client's prepared statements and its dice.
pub struct SimpleUpdate {
    begin: Statement,
    update: Statement,
    select: Statement,
    insert: Statement,
    commit: Statement,
    scale: i32,
    random: SmallRng,
}

impl SimpleUpdate {
    /// Prepares on `client`. `stream` tells clients with the same seed apart.
    pub async fn prepare(client: &Client, scale: u32, seed: u64, stream: u32) -> Result<Self> {
        let prepare = async |sql| client.prepare(sql).await.with_context(|| format!("prepare `{sql}`"));
        Ok(SimpleUpdate {
            begin: prepare("begin").await?,
            update: prepare("update public.pgbench_accounts set abalance = abalance + $1 where aid = $2")
                .await?,
            select: prepare("select abalance from public.pgbench_accounts where aid = $1").await?,
            insert: prepare(
                "insert into public.pgbench_history (tid, bid, aid, delta, mtime)
                 values ($1, $2, $3, $4, current_timestamp)",
            )
            .await?,
            commit: prepare("commit").await?,
            scale: scale as i32,
            random: SmallRng::seed_from_u64(seed ^ (u64::from(stream) << 32)),
        })
    }

    /// Runs one transaction, rolled back if it fails; returns the rows written, which are 2: an update and an insert.
    pub async fn run(&mut self, client: &Client) -> Result<u64, tokio_postgres::Error> {
        let outcome = self.transaction(client).await;
        if outcome.is_err() && !client.is_closed() {
            client.batch_execute("rollback").await?;
        }
        outcome
    }

    async fn transaction(&mut self, client: &Client) -> Result<u64, tokio_postgres::Error> {
        let aid = self.random.random_range(1..=ACCOUNTS_PER_SCALE * self.scale);
        let bid = self.random.random_range(1..=self.scale);
        let tid = self.random.random_range(1..=TELLERS_PER_SCALE * self.scale);
        let delta = self.random.random_range(-5000..=5000);
        client.execute(&self.begin, &[]).await?;
        let updated = client.execute(&self.update, &[&delta, &aid]).await?;
        client.query_one(&self.select, &[&aid]).await?;
        let inserted = client.execute(&self.insert, &[&tid, &bid, &aid, &delta]).await?;
        client.execute(&self.commit, &[]).await?;
        Ok(updated + inserted)
    }
}
