//! The row model: what a change is, in bytes and numbers, whatever it came from or goes to.

pub mod base_type;
pub mod event;
pub mod relation;
pub mod table;
pub mod tuple;

pub use base_type::{BaseType, Element};
pub use event::{Event, OldRow, Prepared};
pub use relation::{Column, Identity, Relation, RelationId};
pub use table::{Misfit, Table, TableColumn};
pub use tuple::{StoredTuple, Tuple, Value};
