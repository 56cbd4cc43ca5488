//! What the source's catalog says of tables, publications and settings.

use anyhow::Context;
use tokio_postgres::Client;

use super::{
    quote::{identifier, qualified},
    types::{Types, has_binary_form},
};
use crate::{
    change::{Identity, Misfit, RelationId, Table, TableColumn},
    config::TableName,
    failure::Failure,
};

/// A table with the size that a snapshot of it is planned by.
#[derive(Clone, Debug)]
pub struct SizedTable {
    pub table: Table,
    pub blocks: u64,
    /// The planner's estimate.
    pub rows: f64,
}

/// The named tables in the order given; refuses what cannot be followed, naming it.
pub async fn tables(client: &Client, names: &[TableName]) -> anyhow::Result<Vec<SizedTable>> {
    let schemas: Vec<&str> = names.iter().map(|name| name.schema.as_str()).collect();
    let plain: Vec<&str> = names.iter().map(|name| name.name.as_str()).collect();
    let rows =
        client.query(include_str!("sql/tables.sql"), &[&schemas, &plain]).await.context("read tables")?;
    let types = Types::read(client).await?;
    let mut tables = Vec::with_capacity(names.len());
    for name in names {
        let row = rows.iter().find(|row| {
            row.get::<_, &str>("schema") == name.schema && row.get::<_, &str>("name") == name.name
        });
        let row = row.ok_or_else(|| {
            Failure::config(format!("table {name} does not exist in the source's database"))
                .hint("check source.tables: schema.table, quoted as in SQL where it has capitals or dots")
        })?;
        tables.push(table(client, &types, name, row).await?);
    }
    Ok(tables)
}

async fn table(
    client: &Client,
    types: &Types,
    name: &TableName,
    row: &tokio_postgres::Row,
) -> anyhow::Result<SizedTable> {
    if row.get::<_, &str>("kind") != "r" {
        return Err(Failure::config(format!("{name} is no ordinary table"))
            .hint("partitioned tables, views and foreign tables cannot be followed yet; name its partitions instead")
            .into());
    }
    if row.get::<_, &str>("persistence") != "p" {
        return Err(Failure::config(format!(
            "table {name} is unlogged or temporary: it has no WAL to follow"
        ))
        .hint("alter table … set logged, or leave it out of source.tables")
        .into());
    }
    let identity = row.get::<_, &str>("identity").bytes().next().and_then(Identity::from_byte);
    let identity = identity.with_context(|| format!("table {name} has an unknown replica identity"))?;
    let id = row.get::<_, u32>("id");
    let columns = columns(client, types, name, id).await?;
    if columns.iter().all(|column| column.key_position.is_none()) {
        return Err(without_key(name, identity).into());
    }
    let table =
        Table { id: RelationId(id), schema: name.schema.clone(), name: name.name.clone(), identity, columns };
    Ok(SizedTable { table, blocks: row.get::<_, i64>("blocks").unsigned_abs(), rows: row.get("rows") })
}

fn without_key(name: &TableName, identity: Identity) -> Failure {
    let table = qualified(name);
    let (why, hint) = match identity {
        Identity::Nothing => (
            "its replica identity is NOTHING",
            format!("alter table {table} replica identity default (it needs a primary key then)"),
        ),
        Identity::Index => (
            "the index of its replica identity is gone or not valid",
            format!("alter table {table} replica identity using index …"),
        ),
        Identity::Default | Identity::Full => (
            "it has no primary key, or a deferrable one",
            format!(
                "alter table {table} add primary key (…), or alter table {table} replica identity using index …"
            ),
        ),
    };
    Failure::config(format!("table {name} has no key by which to find a row again: {why}")).hint(hint)
}

async fn columns(
    client: &Client,
    types: &Types,
    name: &TableName,
    id: u32,
) -> anyhow::Result<Vec<TableColumn>> {
    let rows = client.query(include_str!("sql/columns.sql"), &[&id]).await.context("read columns")?;
    let column = |row: &tokio_postgres::Row| {
        let column = row.get::<_, String>("name");
        if !row.get::<_, &str>("generated").is_empty() {
            return Err(Failure::config(format!("column {column} of table {name} is generated"))
                .hint("tables with generated columns cannot be followed yet; leave it out of source.tables")
                .into());
        }
        let (type_oid, typmod) = (row.get("type_oid"), row.get("typmod"));
        let base = types.resolve(type_oid, typmod);
        Ok(TableColumn {
            name: column,
            type_oid,
            typmod,
            base,
            is_binary: has_binary_form(&base),
            as_text: false,
            misfit: Misfit::Fail,
            shape_misfit: Misfit::Fail,
            type_name: row.get("type_name"),
            not_null: row.get("not_null"),
            key_position: row.get::<_, Option<i16>>("key_position").map(i16::unsigned_abs),
        })
    };
    rows.iter().map(column).collect()
}

/// What a publication publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    pub tables: Vec<TableName>,
    /// Inserts, updates, deletes and truncates, all of them.
    pub complete: bool,
}

/// `None` when there is no publication of that name.
pub async fn publication(client: &Client, name: &str) -> anyhow::Result<Option<Publication>> {
    let rows =
        client.query(include_str!("sql/publication.sql"), &[&name]).await.context("read the publication")?;
    let Some(first) = rows.first() else { return Ok(None) };
    let complete =
        ["inserts", "updates", "deletes", "truncates"].iter().all(|kind| first.get::<_, bool>(*kind));
    let table = |row: &tokio_postgres::Row| {
        Some(TableName::new(row.get::<_, Option<String>>("schema")?, row.get::<_, Option<String>>("name")?))
    };
    Ok(Some(Publication { tables: rows.iter().filter_map(table).collect(), complete }))
}

/// Refuses a publication that would leave changes of `tables` out.
pub fn check_publication(name: &str, publication: &Publication, tables: &[TableName]) -> anyhow::Result<()> {
    if let Some(missing) = tables.iter().find(|table| !publication.tables.contains(table)) {
        return Err(Failure::config(format!("publication {name} exists without table {missing}"))
            .hint(format!("alter publication {} add table {}", identifier(name), qualified(missing)))
            .into());
    }
    if !publication.complete {
        return Err(Failure::config(format!("publication {name} does not publish all kinds of changes"))
            .hint(format!(
                "alter publication {} set (publish = 'insert, update, delete, truncate')",
                identifier(name)
            ))
            .into());
    }
    Ok(())
}

pub async fn create_publication(client: &Client, name: &str, tables: &[TableName]) -> anyhow::Result<()> {
    let list = tables.iter().map(qualified).collect::<Vec<_>>().join(", ");
    let sql = format!("create publication {} for table {list}", identifier(name));
    client.batch_execute(&sql).await.with_context(|| format!("create publication {name}"))
}

pub async fn drop_publication(client: &Client, name: &str) -> anyhow::Result<()> {
    let sql = format!("drop publication if exists {}", identifier(name));
    client.batch_execute(&sql).await.with_context(|| format!("drop publication {name}"))
}

/// The value of a setting as `show` prints it.
pub async fn setting(client: &Client, name: &str) -> anyhow::Result<String> {
    let row = client.query_one("select pg_catalog.current_setting($1)", &[&name]).await;
    Ok(row.with_context(|| format!("read setting {name}"))?.get(0))
}

/// Refuses a server that cannot decode its WAL, or has no slot or walsender left for `slots` more.
pub async fn check_settings(client: &Client, slots: usize) -> anyhow::Result<()> {
    let wal_level = setting(client, "wal_level").await?;
    if wal_level != "logical" {
        return Err(Failure::environment(format!(
            "the source has wal_level = {wal_level}; decoding needs logical"
        ))
        .hint("alter system set wal_level = logical, then restart PostgreSQL")
        .into());
    }
    let row = client
        .query_one(include_str!("sql/free_slots.sql"), &[])
        .await
        .context("count replication slots and walsenders")?;
    for (name, free) in
        [("max_replication_slots", row.get::<_, i64>(0)), ("max_wal_senders", row.get::<_, i64>(1))]
    {
        if free < slots as i64 {
            return Err(Failure::environment(format!(
                "the source has {free} left of {name}; {slots} are needed"
            ))
            .hint(format!("drop what is not used, or raise {name} and restart PostgreSQL"))
            .into());
        }
    }
    Ok(())
}
