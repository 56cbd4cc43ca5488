//! Tables as the stream names them.

/// A table's oid in the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelationId(pub u32);

/// Which columns an UPDATE or DELETE tells of the old row (`pg_class.relreplident`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    Default,
    Nothing,
    Full,
    Index,
}

impl Identity {
    /// From `relreplident`, which pgoutput's Relation message carries too.
    pub fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            b'd' => Identity::Default,
            b'n' => Identity::Nothing,
            b'f' => Identity::Full,
            b'i' => Identity::Index,
            _ => return None,
        })
    }
}

/// One column, in the order in which tuples carry it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    pub name: String,
    pub type_oid: u32,
    /// `atttypmod`, -1 for none.
    pub typmod: i32,
    /// Part of the replica identity.
    pub is_key: bool,
}

/// A table's shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relation {
    pub id: RelationId,
    pub schema: String,
    pub name: String,
    pub identity: Identity,
    pub columns: Vec<Column>,
}
