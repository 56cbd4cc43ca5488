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

/// A named table as the catalog has it, with everything that keeps it from being followed.
#[derive(Clone, Debug)]
pub struct Inspected {
    pub name: TableName,
    /// `None`: there is no such table, or it is of a kind that has no rows of its own.
    pub table: Option<SizedTable>,
    /// Nothing has this name.
    pub is_missing: bool,
    pub failures: Vec<Failure>,
}

/// The named tables in the order given; refuses what cannot be followed, naming it.
pub async fn tables(client: &Client, names: &[TableName]) -> anyhow::Result<Vec<SizedTable>> {
    let followed = |inspected: Inspected| match inspected.failures.into_iter().next() {
        Some(first) => Err(first.into()),
        None => inspected.table.with_context(|| format!("table {} was not described", inspected.name)),
    };
    inspect(client, names).await?.into_iter().map(followed).collect()
}

/// The named tables in the order given, each with all that is wrong with it.
pub async fn inspect(client: &Client, names: &[TableName]) -> anyhow::Result<Vec<Inspected>> {
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
        tables.push(match row {
            Some(row) => table(client, &types, name, row).await?,
            None => {
                Inspected { name: name.clone(), table: None, is_missing: true, failures: vec![missing(name)] }
            }
        });
    }
    Ok(tables)
}

fn missing(name: &TableName) -> Failure {
    Failure::config(format!("table {name} does not exist in the source's database"))
        .hint("check source.tables: schema.table, quoted as in SQL where it has capitals or dots")
}

async fn table(
    client: &Client,
    types: &Types,
    name: &TableName,
    row: &tokio_postgres::Row,
) -> anyhow::Result<Inspected> {
    if row.get::<_, &str>("kind") != "r" {
        let failure = Failure::config(format!("{name} is no ordinary table")).hint(
            "partitioned tables, views and foreign tables cannot be followed yet; name its partitions instead",
        );
        return Ok(Inspected { name: name.clone(), table: None, is_missing: false, failures: vec![failure] });
    }
    let mut failures = Vec::new();
    if row.get::<_, &str>("persistence") != "p" {
        failures.push(
            Failure::config(format!("table {name} is unlogged or temporary: it has no WAL to follow"))
                .hint("alter table … set logged, or leave it out of source.tables"),
        );
    }
    let identity = row.get::<_, &str>("identity").bytes().next().and_then(Identity::from_byte);
    let identity = identity.with_context(|| format!("table {name} has an unknown replica identity"))?;
    let id = row.get::<_, u32>("id");
    let columns = columns(client, types, name, id, &mut failures).await?;
    // Under FULL a change carries the whole old row: it needs no key.
    if identity != Identity::Full && columns.iter().all(|column| column.key_position.is_none()) {
        failures.push(without_key(name, identity));
    }
    let table =
        Table { id: RelationId(id), schema: name.schema.clone(), name: name.name.clone(), identity, columns };
    let table =
        SizedTable { table, blocks: row.get::<_, i64>("blocks").unsigned_abs(), rows: row.get("rows") };
    Ok(Inspected { name: name.clone(), table: Some(table), is_missing: false, failures })
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
                "alter table {table} add primary key (…), or alter table {table} replica identity using index …, or \
                 alter table {table} replica identity full (then its target is a log of rows, docs/types.md)"
            ),
        ),
    };
    Failure::config(format!("table {name} has no key by which to find a row again: {why}")).hint(hint)
}

/// All columns; those that cannot be followed are added to `failures`.
async fn columns(
    client: &Client,
    types: &Types,
    name: &TableName,
    id: u32,
    failures: &mut Vec<Failure>,
) -> anyhow::Result<Vec<TableColumn>> {
    let rows = client.query(include_str!("sql/columns.sql"), &[&id]).await.context("read columns")?;
    let mut column =
        |row: &tokio_postgres::Row| {
            let column = row.get::<_, String>("name");
            if !row.get::<_, &str>("generated").is_empty() {
                failures.push(Failure::config(format!("column {column} of table {name} is generated")).hint(
                    "tables with generated columns cannot be followed yet; leave it out of source.tables",
                ));
            }
            let (type_oid, typmod) = (row.get("type_oid"), row.get("typmod"));
            let base = types.resolve(type_oid, typmod);
            TableColumn {
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
            }
        };
    Ok(rows.iter().map(&mut column).collect())
}

/// What a publication publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    pub tables: Vec<PublishedTable>,
    /// Inserts, updates, deletes and truncates, all of them.
    pub complete: bool,
}

/// A table in a publication, with what the publication leaves out of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedTable {
    pub name: TableName,
    /// `where (…)`, as the server prints it.
    pub row_filter: Option<String>,
    /// Columns that a column list leaves out.
    pub missing_columns: Vec<String>,
}

/// `None` when there is no publication of that name.
pub async fn publication(client: &Client, name: &str) -> anyhow::Result<Option<Publication>> {
    let rows =
        client.query(include_str!("sql/publication.sql"), &[&name]).await.context("read the publication")?;
    let Some(first) = rows.first() else { return Ok(None) };
    let complete =
        ["inserts", "updates", "deletes", "truncates"].iter().all(|kind| first.get::<_, bool>(*kind));
    let table = |row: &tokio_postgres::Row| {
        let schema = row.get::<_, Option<String>>("schema")?;
        Some(PublishedTable {
            name: TableName::new(schema, row.get::<_, Option<String>>("name")?),
            row_filter: row.get("row_filter"),
            missing_columns: row.get("missing_columns"),
        })
    };
    Ok(Some(Publication { tables: rows.iter().filter_map(table).collect(), complete }))
}

/// Refuses a publication that would leave changes of `tables` out.
pub fn check_publication(name: &str, publication: &Publication, tables: &[TableName]) -> anyhow::Result<()> {
    match publication_failures(name, publication, tables).into_iter().next() {
        Some((_, first)) => Err(first.into()),
        None => Ok(()),
    }
}

/// Everything of `tables` that a publication would leave out; the table where it is one's own.
pub fn publication_failures(
    name: &str,
    publication: &Publication,
    tables: &[TableName],
) -> Vec<(Option<TableName>, Failure)> {
    let mut found = Vec::new();
    for table in tables {
        let published = publication.tables.iter().find(|published| published.name == *table);
        let failures =
            match published {
                Some(published) => left_out(name, published),
                None => {
                    vec![Failure::config(format!("publication {name} exists without table {table}")).hint(
                        format!("alter publication {} add table {}", identifier(name), qualified(table)),
                    )]
                }
            };
        found.extend(failures.into_iter().map(|failure| (Some(table.clone()), failure)));
    }
    if !publication.complete {
        let failure = Failure::config(format!("publication {name} does not publish all kinds of changes"))
            .hint(format!(
                "alter publication {} set (publish = 'insert, update, delete, truncate')",
                identifier(name)
            ));
        found.push((None, failure));
    }
    found
}

/// The copy of a table takes all rows and all columns: a stream that has fewer would let the two drift apart.
fn left_out(name: &str, published: &PublishedTable) -> Vec<Failure> {
    let table = &published.name;
    let hint = format!(
        "alter publication {name} drop table {table}; alter publication {name} add table {table}",
        name = identifier(name),
        table = qualified(table)
    );
    let rows = published.row_filter.as_ref().map(|filter| {
        format!("publication {name} leaves rows of table {table} out: it has the row filter {filter}")
    });
    let columns = (!published.missing_columns.is_empty()).then(|| {
        format!(
            "publication {name} leaves columns of table {table} out: {}",
            published.missing_columns.join(", ")
        )
    });
    [rows, columns].into_iter().flatten().map(|message| Failure::config(message).hint(&hint)).collect()
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

/// What decoding needs of a server, and how much of it is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    pub wal_level: String,
    pub free_slots: i64,
    pub free_walsenders: i64,
}

pub async fn capacity(client: &Client) -> anyhow::Result<Capacity> {
    let wal_level = setting(client, "wal_level").await?;
    let row = client
        .query_one(include_str!("sql/free_slots.sql"), &[])
        .await
        .context("count replication slots and walsenders")?;
    Ok(Capacity { wal_level, free_slots: row.get(0), free_walsenders: row.get(1) })
}

/// Refuses a server that cannot decode its WAL, or has no slot or walsender left for `slots` more.
pub async fn check_settings(client: &Client, slots: usize) -> anyhow::Result<()> {
    match capacity_failures(&capacity(client).await?, slots).into_iter().next() {
        Some(first) => Err(first.into()),
        None => Ok(()),
    }
}

/// Everything that keeps a server from decoding into `slots` slots more.
pub fn capacity_failures(capacity: &Capacity, slots: usize) -> Vec<Failure> {
    let mut found = Vec::new();
    let wal_level = &capacity.wal_level;
    if wal_level != "logical" {
        found.push(
            Failure::environment(format!("the source has wal_level = {wal_level}; decoding needs logical"))
                .hint("alter system set wal_level = logical, then restart PostgreSQL"),
        );
    }
    for (name, free) in
        [("max_replication_slots", capacity.free_slots), ("max_wal_senders", capacity.free_walsenders)]
    {
        if free < slots as i64 {
            found.push(
                Failure::environment(format!("the source has {free} left of {name}; {slots} are needed"))
                    .hint(format!("drop what is not used, or raise {name} and restart PostgreSQL")),
            );
        }
    }
    found
}
