//! A sink into nothing: rows are walked and counted, then forgotten. Its drain is the ceiling of what decoding allows.

use std::sync::Mutex;

use super::{Block, Checkpoint, EncodeError, PartialRow, RowMeta, Sink, SinkError, TableRef};
use crate::{
    change::{Table, Value},
    units::Lsn,
};

/// Takes everything, keeps only the last checkpoint, in memory.
#[derive(Debug, Default)]
pub struct NullSink {
    checkpoint: Mutex<Option<Checkpoint>>,
}

#[derive(Debug, Default)]
pub struct NullBlock {
    rows: u32,
    bytes: usize,
}

impl NullBlock {
    fn count<'a>(&mut self, values: impl Iterator<Item = Value<'a>>) {
        let length = |value| match value {
            Value::Binary(bytes) | Value::Text(bytes) => bytes.len() + 1,
            Value::Null | Value::Unchanged => 1,
        };
        self.bytes += values.map(length).sum::<usize>();
        self.rows += 1;
    }
}

impl Block for NullBlock {
    fn push<'a>(&mut self, values: impl Iterator<Item = Value<'a>>, _: RowMeta) -> Result<(), EncodeError> {
        self.count(values);
        Ok(())
    }

    fn push_tombstone<'a>(
        &mut self,
        key: impl Iterator<Item = Value<'a>>,
        _: RowMeta,
    ) -> Result<(), EncodeError> {
        self.count(key);
        Ok(())
    }

    fn rows(&self) -> u32 {
        self.rows
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Sink for NullSink {
    type Block = NullBlock;

    fn block(&self, _: &Table) -> Result<NullBlock, EncodeError> {
        Ok(NullBlock::default())
    }

    async fn check(&self, _: &[Table]) -> anyhow::Result<String> {
        Ok("null".to_owned())
    }

    async fn occupied(&self, _: &[Table]) -> anyhow::Result<Option<String>> {
        Ok(None)
    }

    async fn prepare(&self, _: &[Table]) -> anyhow::Result<()> {
        Ok(())
    }

    async fn reset(&self, _: &[Table]) -> anyhow::Result<()> {
        Ok(())
    }

    async fn remove(&self, _: &[TableRef<'_>], _: &str) -> anyhow::Result<()> {
        Ok(())
    }

    async fn write(&self, _: &Table, block: &mut NullBlock) -> Result<(), SinkError> {
        *block = NullBlock::default();
        Ok(())
    }

    const NEEDS_WHOLE_ROWS: bool = false;

    fn key<'a>(&self, _: &Table, _: impl Iterator<Item = Value<'a>>) -> Result<Vec<u8>, EncodeError> {
        Ok(Vec::new())
    }

    async fn complete(&self, _: &Table, rows: &[PartialRow], block: &mut NullBlock) -> Result<(), SinkError> {
        rows.iter().for_each(|row| block.count(row.new.tuple().values()));
        Ok(())
    }

    async fn truncate(&self, _: &Table, _: Lsn) -> Result<(), SinkError> {
        Ok(())
    }

    async fn load_checkpoint(&self, _: &str) -> anyhow::Result<Option<Checkpoint>> {
        Ok(self.checkpoint.lock().expect("nobody panics while holding it").clone())
    }

    async fn store_checkpoint(&self, checkpoint: &Checkpoint) -> Result<(), SinkError> {
        *self.checkpoint.lock().expect("nobody panics while holding it") = Some(checkpoint.clone());
        Ok(())
    }
}
