//! Transactions whose end is not known yet: those that the server sends while they run, and prepared ones.
//!
//! ```text
//!  S x … E ─┬─ S x … E ─┬─ c x ────────────> replay x         streamed (protocol 2)
//!           └─ A x y    ├─ A x x ──────────> forget x
//!                       └─ p x ──┐
//!  b x … P ──────────────────────┴─ K x ───> replay x         prepared (protocol 3)
//!                                └─ r x ───> forget x
//! ```
//!
//! Their changes are kept ([`super::spill`]) and applied when they commit, as if they came only then; rows keep the LSN of
//! their own record. The slot may pass the changes of a transaction that runs: the server sends it whole again as long as
//! its commit was not confirmed. It may not pass a prepare: the server would send the commit alone.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use super::{
    Counters,
    spill::{Place, Replay, Spill},
};
use crate::{
    change::{Event, Prepared},
    failure::{Failure, Kind},
    units::{Lsn, PgMicros},
};

/// Kept in memory of all transactions together, while they are not very many.
const MEMORY_BYTES: usize = 64 << 20;
/// … and of one, within these bounds.
const MOST_OF_ONE: usize = 1 << 20;
const LEAST_OF_ONE: usize = 64 << 10;

/// What to do with a message.
pub enum Taken {
    /// It is of no transaction in progress: to be applied now.
    Apply,
    /// It has been kept, or has told of an end that asks for nothing.
    Kept,
    /// A relation, which has been kept; the server counts it as known from now on, whatever becomes of the transaction.
    /// (In stream blocks it does so at the commit only.)
    Announced,
    /// It is the commit of a transaction whose changes are to be applied now.
    Replay(Committed),
}

/// A transaction that has committed, and its changes.
pub struct Committed {
    pub changes: Replay,
    /// Once all changes are durable, so is everything up to here.
    pub end_lsn: Lsn,
    pub commit_time: PgMicros,
}

/// One transaction.
#[derive(Debug, Default)]
struct Kept {
    spill: Spill,
    /// Its messages came in stream blocks.
    streamed: bool,
}

/// Whose messages come now.
#[derive(Clone, Copy, Debug)]
struct Current {
    xid: u32,
    streamed: bool,
}

/// The transactions in progress of one session.
pub struct InProgress {
    folder: PathBuf,
    current: Option<Current>,
    kept: HashMap<u32, Kept>,
    /// Prepared transactions by the LSN of their prepare's record.
    prepared: BTreeMap<Lsn, u32>,
    counters: Arc<Counters>,
}

impl InProgress {
    pub fn new(folder: PathBuf, counters: Arc<Counters>) -> Self {
        InProgress { folder, current: None, kept: HashMap::new(), prepared: BTreeMap::new(), counters }
    }

    /// One message of the stream, decoded and as it came.
    #[inline]
    pub fn take(&mut self, lsn: Lsn, event: &Event<'_>, raw: &[u8]) -> anyhow::Result<Taken> {
        match event {
            Event::StreamStart { xid, .. } => self.begin(*xid, true),
            Event::BeginPrepare(prepared) => self.begin(prepared.xid, false),
            Event::StreamStop => self.current = None,
            Event::Prepare(prepared) | Event::StreamPrepare(prepared) => {
                self.current = None;
                self.prepared.insert(prepared.lsn, prepared.xid);
            }
            Event::StreamAbort { xid, subxid, .. } if xid == subxid => self.forget(*xid),
            Event::StreamAbort { xid, subxid, .. } => self.kept(*xid)?.spill.abort(*subxid),
            Event::RollbackPrepared { xid, .. } => {
                self.prepared.retain(|_, prepared| prepared != xid);
                self.forget(*xid);
            }
            Event::StreamCommit { xid, end_lsn, commit_time, .. } => {
                return self.commit(*xid, *end_lsn, *commit_time);
            }
            Event::CommitPrepared(prepared) => return self.commit_prepared(prepared),
            _ => match self.current {
                None => return Ok(Taken::Apply),
                Some(current) => {
                    self.keep(current, lsn, raw)?;
                    if !current.streamed && matches!(event, Event::Relation { .. }) {
                        return Ok(Taken::Announced);
                    }
                }
            },
        }
        Ok(Taken::Kept)
    }

    /// Positions of the server mean nothing in the middle of a transaction that is sent at its prepare.
    pub fn is_inside_prepare(&self) -> bool {
        self.current.is_some_and(|current| !current.streamed)
    }

    /// The slot must not pass this: a prepared transaction begins its end here.
    pub fn ceiling(&self) -> Option<Lsn> {
        self.prepared.keys().next().copied()
    }

    fn begin(&mut self, xid: u32, streamed: bool) {
        self.current = Some(Current { xid, streamed });
        self.kept.entry(xid).or_default().streamed = streamed;
    }

    fn kept(&mut self, xid: u32) -> anyhow::Result<&mut Kept> {
        self.kept.get_mut(&xid).ok_or_else(|| {
            let message = format!("the server ended transaction {xid}, which it had not begun");
            Failure::new(Kind::Internal, message).into()
        })
    }

    fn keep(&mut self, current: Current, lsn: Lsn, raw: &[u8]) -> anyhow::Result<()> {
        let memory_bytes = (MEMORY_BYTES / self.kept.len().max(1)).clamp(LEAST_OF_ONE, MOST_OF_ONE);
        let place = Place { folder: &self.folder, memory_bytes };
        let kept = self.kept.entry(current.xid).or_default();
        let before = kept.spill.bytes();
        kept.spill.add(place, lsn, raw).map_err(|error| {
            let folder = self.folder.display();
            Failure::environment(format!("cannot keep the changes of a large transaction in {folder}: {error}"))
                .hint("make room, or name another folder: transactions.spill_folder; nothing is lost, the slot keeps it")
        })?;
        Counters::add(&self.counters.in_progress_bytes, kept.spill.bytes() - before);
        Ok(())
    }

    fn remove(&mut self, xid: u32) -> Option<Kept> {
        let kept = self.kept.remove(&xid)?;
        self.counters.in_progress_bytes.fetch_sub(kept.spill.bytes(), Relaxed);
        Some(kept)
    }

    fn forget(&mut self, xid: u32) {
        drop(self.remove(xid));
    }

    fn commit(&mut self, xid: u32, end_lsn: Lsn, commit_time: PgMicros) -> anyhow::Result<Taken> {
        self.kept(xid)?;
        let Some(Kept { spill, streamed }) = self.remove(xid) else { return Ok(Taken::Kept) };
        let changes = spill.replay(streamed).map_err(|error| {
            let folder = self.folder.display();
            Failure::environment(format!("cannot read back a transaction's changes in {folder}: {error}"))
        })?;
        Ok(Taken::Replay(Committed { changes, end_lsn, commit_time }))
    }

    fn commit_prepared(&mut self, prepared: &Prepared<'_>) -> anyhow::Result<Taken> {
        self.prepared.retain(|_, xid| *xid != prepared.xid);
        if !self.kept.contains_key(&prepared.xid) {
            let gid = String::from_utf8_lossy(prepared.gid);
            let message = format!(
                "prepared transaction {gid} has committed, but the slot had passed its changes before they were applied"
            );
            return Err(Failure::source(message)
                .hint("load the tables anew: choose another target.database and another source.slot")
                .into());
        }
        self.commit(prepared.xid, prepared.end_lsn, prepared.time)
    }
}

/// What this session had kept is of no use to the next: the server sends it again.
impl Drop for InProgress {
    fn drop(&mut self) {
        let bytes = self.kept.values().map(|kept| kept.spill.bytes()).sum();
        self.counters.in_progress_bytes.fetch_sub(bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_progress() -> InProgress {
        InProgress::new(std::env::temp_dir(), Arc::new(Counters::default()))
    }

    fn prepared(xid: u32, lsn: u64) -> Prepared<'static> {
        Prepared { lsn: Lsn(lsn), end_lsn: Lsn(lsn + 8), time: PgMicros(5), xid, gid: b"g" }
    }

    fn insert(xid: Option<u32>) -> (Event<'static>, Vec<u8>) {
        let mut raw = vec![b'I'];
        raw.extend(xid.iter().flat_map(|xid| xid.to_be_bytes()));
        raw.extend(b"\0\0\0\x07N\0\0");
        let relation = crate::change::RelationId(7);
        let new = crate::change::Tuple::from_checked(0, false, &[]);
        (Event::Insert { xid, relation, new }, raw)
    }

    fn kept(transactions: &mut InProgress, event: &Event<'_>, raw: &[u8]) {
        assert!(matches!(transactions.take(Lsn(1), event, raw), Ok(Taken::Kept)), "{event:?}");
    }

    fn replayed(transactions: &mut InProgress, event: &Event<'_>) -> (usize, Lsn) {
        let Ok(Taken::Replay(mut committed)) = transactions.take(Lsn(1), event, &[]) else {
            panic!("{event:?} commits nothing")
        };
        let mut count = 0;
        while committed.changes.next_message().unwrap().is_some() {
            count += 1;
        }
        (count, committed.end_lsn)
    }

    fn stream_commit(xid: u32) -> Event<'static> {
        Event::StreamCommit { xid, commit_lsn: Lsn(90), end_lsn: Lsn(98), commit_time: PgMicros(5) }
    }

    #[test]
    fn blocks_of_several_transactions_are_kept_apart() {
        let mut transactions = in_progress();
        let (event, raw) = insert(None);
        assert!(matches!(transactions.take(Lsn(1), &event, &raw), Ok(Taken::Apply)));
        for (xid, subxid) in [(1, 1), (2, 2), (1, 11), (1, 1), (2, 12)] {
            kept(&mut transactions, &Event::StreamStart { xid, first: false }, &[]);
            let (event, raw) = insert(Some(subxid));
            kept(&mut transactions, &event, &raw);
            kept(&mut transactions, &Event::StreamStop, &[]);
        }
        kept(&mut transactions, &Event::StreamAbort { xid: 1, subxid: 11, abort: None }, &[]);
        assert_eq!(replayed(&mut transactions, &stream_commit(1)), (2, Lsn(98)));
        kept(&mut transactions, &Event::StreamAbort { xid: 2, subxid: 2, abort: None }, &[]);
        assert!(transactions.take(Lsn(1), &stream_commit(2), &[]).is_err(), "it was rolled back");
        assert_eq!(transactions.counters.in_progress_bytes.load(Relaxed), 0);
    }

    #[test]
    fn the_slot_waits_for_the_first_prepared_transaction() {
        let mut transactions = in_progress();
        for (xid, lsn) in [(1, 100), (2, 200)] {
            kept(&mut transactions, &Event::BeginPrepare(prepared(xid, lsn)), &[]);
            assert!(transactions.is_inside_prepare());
            let (event, raw) = insert(None);
            kept(&mut transactions, &event, &raw);
            kept(&mut transactions, &Event::Prepare(prepared(xid, lsn)), &[]);
            assert!(!transactions.is_inside_prepare());
        }
        assert_eq!(transactions.ceiling(), Some(Lsn(100)));
        assert_eq!(replayed(&mut transactions, &Event::CommitPrepared(prepared(1, 300))), (1, Lsn(308)));
        assert_eq!(transactions.ceiling(), Some(Lsn(200)));
        let rollback = Event::RollbackPrepared {
            prepare_end_lsn: Lsn(208),
            rollback_end_lsn: Lsn(400),
            prepare_time: PgMicros(5),
            rollback_time: PgMicros(6),
            xid: 2,
            gid: b"g",
        };
        kept(&mut transactions, &rollback, &[]);
        assert_eq!(transactions.ceiling(), None);
        let gone = transactions.take(Lsn(1), &Event::CommitPrepared(prepared(9, 300)), &[]);
        assert!(gone.err().unwrap().to_string().contains("prepared transaction g"));
    }
}
