//! A source table as its catalog describes it: what a sink needs to know to make room for it.

use super::{BaseType, Identity, Relation, RelationId};

/// What becomes of a value that the target's type cannot hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Misfit {
    /// The pipe stops and names it.
    #[default]
    Fail,
    /// NULL, counted; the target's column is nullable then.
    Null,
    /// The nearest value that fits, counted.
    Clamp,
}

/// One published column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableColumn {
    pub name: String,
    pub type_oid: u32,
    /// `atttypmod`, -1 for none.
    pub typmod: i32,
    /// As PostgreSQL writes it (`numeric(10,2)`), for messages.
    pub type_name: String,
    pub not_null: bool,
    pub base: BaseType,
    /// The target keeps PostgreSQL's text, whatever the type.
    pub as_text: bool,
    /// What becomes of a value that the target's type cannot hold.
    pub misfit: Misfit,
    /// What becomes of an array that the target's type cannot hold: of several dimensions, or with other bounds.
    pub shape_misfit: Misfit,
    /// Its values can be read in binary form; else they travel as text.
    pub is_binary: bool,
    /// Position within the key that identifies a row, from 0.
    pub key_position: Option<u16>,
}

/// A table, its columns in attribute order, and its key: the replica identity, or the primary key under FULL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub id: RelationId,
    pub schema: String,
    pub name: String,
    pub identity: Identity,
    pub columns: Vec<TableColumn>,
}

impl Table {
    /// The key's columns in key order.
    pub fn key(&self) -> Vec<&TableColumn> {
        let mut key: Vec<_> = self.columns.iter().filter(|column| column.key_position.is_some()).collect();
        key.sort_by_key(|column| column.key_position);
        key
    }

    /// Rows can be found again by their key. One without is kept as a log of rows that came and went: its replica identity
    /// is FULL.
    pub fn has_key(&self) -> bool {
        self.columns.iter().any(|column| column.key_position.is_some())
    }

    /// Every column can be read in binary form.
    pub fn is_binary(&self) -> bool {
        self.columns.iter().all(|column| column.is_binary)
    }

    /// What differs between this table and the shape in which the stream announces it; `None` when nothing does.
    pub fn difference(&self, relation: &Relation) -> Option<String> {
        if (&self.schema, &self.name) != (&relation.schema, &relation.name) {
            return Some(format!("it is now called {}.{}", relation.schema, relation.name));
        }
        if self.identity != relation.identity {
            return Some(format!("its replica identity is now {:?}", relation.identity));
        }
        if self.columns.len() != relation.columns.len() {
            return Some(format!("it had {} columns, now {}", self.columns.len(), relation.columns.len()));
        }
        let pairs = self.columns.iter().zip(&relation.columns);
        pairs.into_iter().find_map(|(ours, theirs)| {
            let same =
                (&ours.name, ours.type_oid, ours.typmod) == (&theirs.name, theirs.type_oid, theirs.typmod);
            (!same).then(|| format!("column {} changed (name, type or type modifier)", ours.name))
        })
    }
}

/// `schema.name`, for people.
impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}
