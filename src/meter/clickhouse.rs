//! The target's tables by their active parts: `<table>.rows`, `<table>.bytes` on disk, `<table>.parts`.
//!
//! `rows` is what lies in the parts: versions of one key that are not merged yet count each, and a merge makes it fall.
//! It is cheap at any size, which `count()` with FINAL is not.

use ::clickhouse::Client;
use anyhow::{Context, Result};

use super::Meter;
use crate::metric::Values;

pub struct TablesMeter {
    client: Client,
    database: String,
    tables: Vec<String>,
}

impl TablesMeter {
    /// Reads `tables` of `database`; a table that does not exist yet, or is empty, has 0 of everything.
    pub fn new(client: Client, database: &str, tables: &[String]) -> Self {
        TablesMeter { client, database: database.to_owned(), tables: tables.to_owned() }
    }
}

/// Rows that a reader of one table sees: newest versions only, tombstones left out.
pub async fn visible_rows(client: &Client, database: &str, table: &str) -> Result<u64> {
    let sql = "select count() from {database:Identifier}.{table:Identifier} final where _deleted = 0";
    let query = client.query(sql).param("database", database).param("table", table);
    query.fetch_one().await.with_context(|| format!("count the rows of {database}.{table}"))
}

impl Meter for TablesMeter {
    fn name(&self) -> &str {
        "clickhouse"
    }

    async fn sample(&mut self) -> Result<Values> {
        let query = self.client.query(include_str!("sql/tables.sql"));
        let rows = query.bind(&self.database).bind(&self.tables).fetch_all::<(String, f64, f64, f64)>().await;
        let rows = rows.context("read the target's parts")?;
        let total: f64 = rows.iter().map(|&(_, rows, ..)| rows).sum();
        let mut values = Values::from([("rows".to_owned(), total)]);
        for table in &self.tables {
            let found = rows.iter().find(|(name, ..)| name == table);
            let (rows, bytes, parts) =
                found.map_or((0.0, 0.0, 0.0), |&(_, rows, bytes, parts)| (rows, bytes, parts));
            for (unit, value) in [("rows", rows), ("bytes", bytes), ("parts", parts)] {
                values.insert(format!("{table}.{unit}"), value);
            }
        }
        Ok(values)
    }
}
