//! Postgres to rows: the slot, the stream, the snapshot, and the decoders of what they send.

pub mod copy;
pub mod nap;
pub mod pgoutput;
pub mod slot;
pub mod snapshot;
pub mod stream;
