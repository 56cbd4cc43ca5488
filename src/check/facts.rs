//! What the two servers were found to be: read by [`super::source`] and [`super::target`], judged by [`super::judge`].

use crate::{
    config::TableName,
    failure::Failure,
    postgres::catalog::{Capacity, Inspected, Publication},
    sink::{Checkpoint, clickhouse::ddl::Place},
    source::slot::{SlotInfo, System},
};

/// A table of the file, and who makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub name: TableName,
    /// A probe makes and removes it: it need not exist, and must not be somebody else's.
    pub by_probe: bool,
}

/// The source as this role sees it.
#[derive(Clone, Debug)]
pub struct SourceFacts {
    pub server: Server,
    pub database: String,
    pub capacity: Capacity,
    /// What `IDENTIFY_SYSTEM` said in a replication session, or why there was none.
    pub system: Result<System, Failure>,
    pub slot: Option<SlotInfo>,
    pub publication: Option<Publication>,
    /// In the order of the file.
    pub tables: Vec<TableFacts>,
    pub breaking: Vec<Breaking>,
}

#[derive(Clone, Debug)]
pub struct Server {
    pub version: String,
    pub role: String,
    pub is_superuser: bool,
    pub may_replicate: bool,
    /// CREATE on the database, which a publication needs.
    pub may_create: bool,
    pub is_standby: bool,
    /// -1: without bound.
    pub max_slot_wal_keep_mib: Option<i64>,
    /// 0: never.
    pub wal_sender_timeout_ms: i64,
    /// 0: never; `None`: before 18.
    pub idle_slot_timeout_s: Option<i64>,
}

#[derive(Clone, Debug)]
pub struct TableFacts {
    pub wanted: Wanted,
    pub inspected: Inspected,
    /// `None` where there is no table.
    pub detail: Option<TableDetail>,
}

#[derive(Clone, Debug, Default)]
pub struct TableDetail {
    pub may_select: bool,
    pub is_owner: bool,
    pub owner: String,
    /// Row policies apply to this role.
    pub row_security: bool,
    pub bytes: u64,
    pub comment: String,
    pub key_index: Option<String>,
    pub has_deferrable_key: bool,
    /// An index that could become the replica identity.
    pub candidate_index: Option<String>,
    /// The partitioned table, or the one that it inherits from.
    pub child_of: Option<String>,
    pub is_partition: bool,
    /// Columns whose values may be stored out of line.
    pub large_columns: Vec<String>,
}

/// A table that a publication keeps its own application from updating.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breaking {
    pub publication: String,
    pub table: TableName,
}

/// The target as this user sees it.
#[derive(Clone, Debug, Default)]
pub struct TargetFacts {
    pub version: String,
    pub user: String,
    pub database: String,
    pub database_exists: bool,
    pub views: bool,
    /// One for each table of the source that exists, by its name.
    pub places: Vec<(TableName, Place)>,
    pub checkpoint: Option<Checkpoint>,
    /// Empty where the server has no `CHECK GRANT`.
    pub grants: Vec<Grant>,
}

/// A right that a pipe needs on the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// As `GRANT` takes it: ``INSERT ON `db`.*``.
    pub right: String,
    pub granted: bool,
}
