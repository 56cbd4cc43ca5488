//! What the stream says, message by message.

use super::{Relation, RelationId, Tuple};
use crate::units::{Lsn, PgMicros};

/// What an UPDATE or DELETE tells of the row before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldRow<'a> {
    /// `K`: the identity's columns; the others are null, which here means "not sent".
    Key(Tuple<'a>),
    /// `O`: the whole row (identity FULL).
    Full(Tuple<'a>),
}

impl<'a> OldRow<'a> {
    pub fn tuple(&self) -> Tuple<'a> {
        match self {
            OldRow::Key(tuple) | OldRow::Full(tuple) => *tuple,
        }
    }
}

/// The names of a transaction in the two-phase messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepared<'a> {
    /// The prepare's (or commit's, or rollback's) own record.
    pub lsn: Lsn,
    pub end_lsn: Lsn,
    pub time: PgMicros,
    pub xid: u32,
    pub gid: &'a [u8],
}

/// One pgoutput message, protocol 1 to 4, borrowed from the receive buffer.
///
/// `xid` is the (sub)transaction that a change inside a stream block belongs to, `None` outside of one.
/// Source: PostgreSQL manual, "Logical Replication Message Formats".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    Begin {
        final_lsn: Lsn,
        commit_time: PgMicros,
        xid: u32,
    },
    Commit {
        commit_lsn: Lsn,
        end_lsn: Lsn,
        commit_time: PgMicros,
    },
    Origin {
        commit_lsn: Lsn,
        name: &'a [u8],
    },
    Relation {
        xid: Option<u32>,
        relation: Relation,
    },
    Type {
        xid: Option<u32>,
        oid: u32,
        schema: &'a [u8],
        name: &'a [u8],
    },
    Insert {
        xid: Option<u32>,
        relation: RelationId,
        new: Tuple<'a>,
    },
    Update {
        xid: Option<u32>,
        relation: RelationId,
        old: Option<OldRow<'a>>,
        new: Tuple<'a>,
    },
    Delete {
        xid: Option<u32>,
        relation: RelationId,
        old: OldRow<'a>,
    },
    Truncate {
        xid: Option<u32>,
        cascade: bool,
        restart_identity: bool,
        relations: Vec<RelationId>,
    },
    Message {
        xid: Option<u32>,
        transactional: bool,
        lsn: Lsn,
        prefix: &'a [u8],
        content: &'a [u8],
    },
    StreamStart {
        xid: u32,
        first: bool,
    },
    StreamStop,
    StreamCommit {
        xid: u32,
        commit_lsn: Lsn,
        end_lsn: Lsn,
        commit_time: PgMicros,
    },
    /// `lsn` and `time` come with `streaming = parallel` only.
    StreamAbort {
        xid: u32,
        subxid: u32,
        abort: Option<(Lsn, PgMicros)>,
    },
    BeginPrepare(Prepared<'a>),
    Prepare(Prepared<'a>),
    CommitPrepared(Prepared<'a>),
    RollbackPrepared {
        prepare_end_lsn: Lsn,
        rollback_end_lsn: Lsn,
        prepare_time: PgMicros,
        rollback_time: PgMicros,
        xid: u32,
        gid: &'a [u8],
    },
    StreamPrepare(Prepared<'a>),
}
