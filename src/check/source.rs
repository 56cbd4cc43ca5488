//! Reads the source's facts; writes nothing.

use anyhow::Context;
use tokio_postgres::Client;

use super::facts::{Breaking, Server, SourceFacts, TableDetail, TableFacts, Wanted};
use crate::{
    config::{Pipeline, SourceEndpoint, TableName},
    failure::Failure,
    pipeline::policies,
    postgres::{catalog, sql_session},
    source::{
        slot::{self, System},
        stream::ReplicationStream,
    },
};

/// Errors: there is no session, or the catalog cannot be read.
pub async fn read(
    endpoint: &SourceEndpoint,
    pipeline: &Pipeline,
    wanted: &[Wanted],
) -> anyhow::Result<SourceFacts> {
    let client = sql_session(endpoint, "cdcprobe check").await?;
    // Whatever goes wrong in here: nothing can be written.
    client
        .batch_execute("set default_transaction_read_only = on")
        .await
        .context("make the session read only")?;
    Ok(SourceFacts {
        server: server(&client).await?,
        database: endpoint.database.clone(),
        capacity: catalog::capacity(&client).await?,
        system: system(endpoint).await,
        slot: slot::slot_info(&client, &pipeline.slot).await?,
        publication: catalog::publication(&client, &pipeline.publication).await?,
        tables: tables(&client, pipeline, wanted).await?,
        breaking: breaking(&client).await?,
    })
}

async fn server(client: &Client) -> anyhow::Result<Server> {
    let row = client.query_one(include_str!("sql/server.sql"), &[]).await;
    let row = row.context("read the source's settings and rights")?;
    Ok(Server {
        version: row.get("version"),
        role: row.get("role"),
        is_superuser: row.get("is_superuser"),
        may_replicate: row.get("may_replicate"),
        may_create: row.get("may_create"),
        is_standby: row.get("is_standby"),
        max_slot_wal_keep_mib: row.get("max_slot_wal_keep_mib"),
        wal_sender_timeout_ms: row.get::<_, Option<i64>>("wal_sender_timeout_ms").unwrap_or(0),
        idle_slot_timeout_s: row.get("idle_slot_timeout_s"),
    })
}

/// A replication session, the surest way to know that there can be one; it only asks who the server is.
async fn system(endpoint: &SourceEndpoint) -> Result<System, Failure> {
    let mut wire = ReplicationStream::connect(endpoint).await?;
    let system = slot::identify_system(&mut wire).await?;
    wire.terminate().await;
    Ok(system)
}

async fn tables(client: &Client, pipeline: &Pipeline, wanted: &[Wanted]) -> anyhow::Result<Vec<TableFacts>> {
    let names: Vec<TableName> = wanted.iter().map(|wanted| wanted.name.clone()).collect();
    let mut facts = Vec::with_capacity(wanted.len());
    for (wanted, mut inspected) in wanted.iter().zip(catalog::inspect(client, &names).await?) {
        if let Some(table) = &mut inspected.table {
            let applied = policies::apply(&pipeline.values, std::slice::from_mut(table));
            inspected.failures.extend(applied.err());
        }
        let detail = match &inspected.table {
            Some(table) => Some(detail(client, table.table.id.0).await?),
            None => None,
        };
        facts.push(TableFacts { wanted: wanted.clone(), inspected, detail });
    }
    Ok(facts)
}

async fn detail(client: &Client, id: u32) -> anyhow::Result<TableDetail> {
    let row =
        client.query_one(include_str!("sql/table.sql"), &[&id]).await.context("read a table's rights")?;
    Ok(TableDetail {
        may_select: row.get("may_select"),
        is_owner: row.get("is_owner"),
        owner: row.get("owner"),
        row_security: row.get("row_security"),
        bytes: row.get::<_, i64>("bytes").unsigned_abs(),
        comment: row.get("comment"),
        key_index: row.get("key_index"),
        has_deferrable_key: row.get("has_deferrable_key"),
        candidate_index: row.get("candidate_index"),
        child_of: row.get("child_of"),
        is_partition: row.get("is_partition"),
        large_columns: row.get("large_columns"),
    })
}

async fn breaking(client: &Client) -> anyhow::Result<Vec<Breaking>> {
    let rows = client.query(include_str!("sql/breaking.sql"), &[]).await.context("read the publications")?;
    let breaking = |row: &tokio_postgres::Row| Breaking {
        publication: row.get("publication"),
        table: TableName::new(row.get::<_, String>("schema"), row.get::<_, String>("name")),
    };
    Ok(rows.iter().map(breaking).collect())
}
