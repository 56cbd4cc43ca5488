//! One connection that copies ranges of tables, all on one exported snapshot.

use super::plan::BlockRange;
use crate::{
    change::{Table, TableColumn},
    config::{SourceEndpoint, TableName},
    postgres::{
        WireError,
        quote::{identifier, literal, qualified},
        wire::{SessionKind, Wire},
    },
    source::copy::{CopyDecoder, CopyError, CopyRow},
};

/// What ended a range's copy.
#[derive(Debug, thiserror::Error)]
pub enum RangeError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Copy(#[from] CopyError),
}

/// What a reader has next.
#[derive(Debug)]
pub enum RangeStep<'a> {
    Row(CopyRow<'a>),
    /// A message without a row: the format's header or trailer.
    NoRow,
    /// Nothing complete is here: [`RangeReader::fill`].
    NeedFill,
    /// The range is complete: [`RangeReader::finish`].
    Done,
}

/// A session inside a transaction that sees the snapshot.
pub struct RangeReader {
    wire: Wire,
    decoder: CopyDecoder,
}

impl RangeReader {
    /// Joins the snapshot that another session exported and still holds.
    pub async fn open(endpoint: &SourceEndpoint, snapshot: &str) -> Result<Self, WireError> {
        let mut wire = Wire::connect(endpoint, SessionKind::Sql, "cdcprobe snapshot").await?;
        let begin = format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT {}",
            literal(snapshot)
        );
        wire.simple_query(&begin).await?;
        Ok(RangeReader { wire, decoder: CopyDecoder::new(0) })
    }

    pub async fn start(&mut self, table: &Table, range: BlockRange) -> Result<(), WireError> {
        self.decoder = CopyDecoder::new(u16::try_from(table.columns.len()).unwrap_or(u16::MAX));
        self.wire.begin_copy(&copy_command(table, range)).await
    }

    #[inline]
    pub fn next_step(&mut self) -> Result<RangeStep<'_>, RangeError> {
        let Some(frame) = self.wire.next_frame()? else { return Ok(RangeStep::NeedFill) };
        match frame.tag {
            b'd' => Ok(self.decoder.decode(frame.body)?.map_or(RangeStep::NoRow, RangeStep::Row)),
            b'c' => Ok(RangeStep::Done),
            other => {
                Err(WireError::Protocol(format!("a message `{}` inside COPY", char::from(other))).into())
            }
        }
    }

    pub async fn fill(&mut self) -> Result<usize, WireError> {
        self.wire.fill().await
    }

    pub async fn finish(&mut self) -> Result<(), WireError> {
        self.wire.finish_copy_out().await
    }

    pub async fn close(self) {
        self.wire.terminate().await;
    }
}

/// A column as COPY is to send it. `concat` gives the text of a type's output function, which a cast to text does not for
/// every type (`inet`); `is distinct from null` asks for the whole value, which `is not null` does not for row types.
fn copied(column: &TableColumn) -> String {
    let name = identifier(&column.name);
    if column.is_binary {
        name
    } else {
        format!("case when {name} is distinct from null then pg_catalog.concat({name}) end")
    }
}

fn copy_command(table: &Table, range: BlockRange) -> String {
    let columns = table.columns.iter().map(copied).collect::<Vec<_>>().join(", ");
    let name = qualified(&TableName::new(&table.schema, &table.name));
    let below = range.end.map(|end| format!(" and ctid < '({end},0)'::tid")).unwrap_or_default();
    format!(
        "COPY (select {columns} from only {name} where ctid >= '({},0)'::tid{below}) TO STDOUT (FORMAT binary)",
        range.start
    )
}
