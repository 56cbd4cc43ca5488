//! Reads the target's facts; writes nothing.

use super::facts::{Grant, TargetFacts};
use crate::{
    change::Table,
    config::{TableName, TargetEndpoint},
    sink::{
        Sink,
        clickhouse::{ClickHouseSink, quote::identifier},
    },
};

/// Errors: the server cannot be reached, refuses the user, or cannot be read.
pub async fn read(endpoint: &TargetEndpoint, slot: &str, tables: &[&Table]) -> anyhow::Result<TargetFacts> {
    let sink = ClickHouseSink::new(endpoint.clone());
    let mut facts = TargetFacts {
        version: sink.version().await?,
        user: endpoint.user.clone(),
        database: endpoint.database.clone(),
        database_exists: sink.database_exists().await?,
        views: endpoint.views,
        checkpoint: sink.load_checkpoint(slot).await?,
        ..TargetFacts::default()
    };
    for table in tables {
        facts.places.push((TableName::new(&table.schema, &table.name), sink.place(table).await?));
    }
    facts.grants = grants(&sink, &facts).await?;
    Ok(facts)
}

/// What the pipe will be asked for: less where the database is there, or no view is to be made.
fn needed(facts: &TargetFacts) -> Vec<String> {
    let all = format!("{}.*", identifier(&facts.database));
    let mut rights = vec!["SELECT", "INSERT", "ALTER DELETE", "CREATE TABLE", "DROP TABLE", "TRUNCATE"];
    if !facts.database_exists {
        rights.push("CREATE DATABASE");
    }
    if facts.views {
        rights.extend(["CREATE VIEW", "DROP VIEW"]);
    }
    rights.into_iter().map(|right| format!("{right} ON {all}")).collect()
}

async fn grants(sink: &ClickHouseSink, facts: &TargetFacts) -> anyhow::Result<Vec<Grant>> {
    let mut grants = Vec::new();
    for right in needed(facts) {
        match sink.is_granted(&right).await? {
            Some(granted) => grants.push(Grant { right, granted }),
            None => return Ok(Vec::new()),
        }
    }
    Ok(grants)
}
