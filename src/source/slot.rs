//! The replication slot: what it is now, making one with a snapshot, promoting it, dropping it.
//!
//! A snapshot hangs on a *temporary* slot, which vanishes with its connection: a crash while tables are copied leaves
//! nothing that would hold back WAL. Only when every row is durable is it copied to a permanent slot
//! (`pg_copy_logical_replication_slot` keeps its position).

use anyhow::Context;
use tokio_postgres::Client;

use crate::{
    failure::Failure,
    postgres::{WireError, quote::identifier, wire::Wire},
    units::Lsn,
};

/// `IDENTIFY_SYSTEM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct System {
    pub identifier: u64,
    pub timeline: u32,
    /// The WAL flushed so far.
    pub flush_lsn: Lsn,
}

pub async fn identify_system(wire: &mut Wire) -> Result<System, WireError> {
    let rows = wire.simple_query("IDENTIFY_SYSTEM").await?;
    let field = |index: usize| rows.first()?.get(index)?.as_deref();
    let parse = || {
        Some(System {
            identifier: field(0)?.parse().ok()?,
            timeline: field(1)?.parse().ok()?,
            flush_lsn: field(2)?.parse().ok()?,
        })
    };
    parse().ok_or_else(|| WireError::Protocol("IDENTIFY_SYSTEM answered something else".to_owned()))
}

/// A row of pg_replication_slots, as far as resuming needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotInfo {
    pub plugin: Option<String>,
    pub database: Option<String>,
    pub active_pid: Option<i32>,
    pub confirmed_flush: Option<Lsn>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
}

/// `None` when there is no such slot.
pub async fn slot_info(client: &Client, name: &str) -> anyhow::Result<Option<SlotInfo>> {
    let sql = include_str!("../postgres/sql/slot.sql");
    let row = client.query_opt(sql, &[&name]).await.context("read the replication slot")?;
    let info = |row: tokio_postgres::Row| {
        let confirmed = row.get::<_, Option<&str>>("confirmed_flush_lsn").map(str::parse).transpose()?;
        Ok(SlotInfo {
            plugin: row.get("plugin"),
            database: row.get("database"),
            active_pid: row.get("active_pid"),
            confirmed_flush: confirmed,
            wal_status: row.get("wal_status"),
        })
    };
    row.map(info).transpose()
}

/// A slot just made.
#[derive(Clone, Debug)]
pub struct NewSlot {
    /// Commits that end after this are streamed; all others are in the snapshot.
    pub consistent_point: Lsn,
    /// For `SET TRANSACTION SNAPSHOT`, as long as the connection runs no other command.
    pub snapshot: String,
}

/// Makes a slot and exports its snapshot. Waits for transactions that are running now.
pub async fn create_with_snapshot(
    wire: &mut Wire,
    name: &str,
    temporary: bool,
) -> Result<NewSlot, WireError> {
    let temporary = if temporary { "TEMPORARY " } else { "" };
    let options = if wire.server_version() >= 150_000 { "(SNAPSHOT 'export')" } else { "EXPORT_SNAPSHOT" };
    let name = identifier(name);
    let sql = format!("CREATE_REPLICATION_SLOT {name} {temporary}LOGICAL pgoutput {options}");
    let rows = wire.simple_query(&sql).await?;
    let field = |index: usize| rows.first()?.get(index)?.as_deref();
    let parse =
        || Some(NewSlot { consistent_point: field(1)?.parse().ok()?, snapshot: field(2)?.to_owned() });
    parse().ok_or_else(|| WireError::Protocol("CREATE_REPLICATION_SLOT answered something else".to_owned()))
}

/// A permanent slot of the current position, without a snapshot.
pub async fn create(client: &Client, name: &str) -> anyhow::Result<Lsn> {
    let sql = "select lsn::text from pg_catalog.pg_create_logical_replication_slot($1, 'pgoutput')";
    let row =
        client.query_one(sql, &[&name]).await.with_context(|| format!("create replication slot {name}"))?;
    Ok(row.get::<_, &str>(0).parse()?)
}

/// Copies a (temporary) slot to a permanent one of another name, at the same position.
pub async fn promote(client: &Client, temporary: &str, name: &str) -> anyhow::Result<Lsn> {
    let sql = "select lsn::text from pg_catalog.pg_copy_logical_replication_slot($1, $2, false)";
    let row = client.query_one(sql, &[&temporary, &name]).await;
    let row = row.with_context(|| format!("make replication slot {name} permanent"))?;
    Ok(row.get::<_, &str>(0).parse()?)
}

/// Drops a slot that nobody uses; nothing happens when there is none.
pub async fn drop(client: &Client, name: &str) -> anyhow::Result<()> {
    let sql = "select pg_catalog.pg_drop_replication_slot(slot_name) from pg_catalog.pg_replication_slots \
               where slot_name = $1";
    client.execute(sql, &[&name]).await.with_context(|| format!("drop replication slot {name}"))?;
    Ok(())
}

/// Slot names are lower-case letters, digits and underscores, 63 at most.
pub fn check_name(name: &str) -> Result<(), Failure> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    // The snapshot's temporary slot has a suffix.
    if !name.is_empty() && name.len() + TEMPORARY_SUFFIX.len() <= 63 && name.chars().all(allowed) {
        return Ok(());
    }
    Err(Failure::config(format!("source.slot {name:?} is no name for a replication slot"))
        .hint("use 1 to 54 lower-case letters, digits and underscores"))
}

/// Appended to the name of the slot that a snapshot hangs on.
pub const TEMPORARY_SUFFIX: &str = "_snapshot";
