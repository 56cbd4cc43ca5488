//! When the rows collected so far are sent. Pure: time comes in as an argument.

use std::time::{Duration, Instant};

use crate::config::BatchLimits;

/// A checkpoint without rows is written this often: a quiet database must not cost the target an insert a commit.
const IDLE_CHECKPOINT: Duration = Duration::from_secs(5);

/// Counts what is waiting, and says when it has waited enough.
#[derive(Debug)]
pub struct Batcher {
    limits: BatchLimits,
    rows: u64,
    bytes: u64,
    /// When the first row, or the first commit without rows, came to wait.
    waiting_since: Option<Instant>,
    /// A fence waits: commits without rows are as urgent as rows.
    fence: bool,
}

impl Batcher {
    pub fn new(limits: BatchLimits) -> Self {
        Batcher { limits, rows: 0, bytes: 0, waiting_since: None, fence: false }
    }

    pub fn add_row(&mut self, bytes: usize) {
        self.rows += 1;
        self.bytes += bytes as u64;
    }

    /// Something is to be made durable: rows, or a position only.
    pub fn touch(&mut self, now: Instant) {
        self.waiting_since.get_or_insert(now);
    }

    pub fn add_fence(&mut self) {
        self.fence = true;
    }

    /// By size: must be asked after every row.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.rows >= u64::from(self.limits.max_rows) || self.bytes >= self.limits.max_bytes.0
    }

    /// The instant from which it should be sent, when nothing else comes; `None`: there is nothing to send.
    ///
    /// `quiet`: the source has no more to say now and no insert is under way, so waiting longer would gain nothing.
    pub fn deadline(&self, quiet: bool) -> Option<Instant> {
        let since = self.waiting_since?;
        let wait = match (self.rows > 0 || self.fence, quiet) {
            (true, true) => self.limits.min_wait,
            (true, false) => self.limits.max_wait,
            (false, _) => self.limits.max_wait.max(IDLE_CHECKPOINT),
        };
        Some(since + wait)
    }

    pub fn is_due(&self, now: Instant, quiet: bool) -> bool {
        self.is_full() || self.deadline(quiet).is_some_and(|deadline| deadline <= now)
    }

    /// What was waiting is on its way.
    pub fn clear(&mut self) {
        *self = Batcher::new(self.limits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::ByteSize;

    const LIMITS: BatchLimits = BatchLimits {
        max_bytes: ByteSize(1000),
        max_rows: 3,
        max_wait: Duration::from_secs(1),
        min_wait: Duration::from_millis(50),
        in_flight: 2,
    };

    #[test]
    fn size_is_never_waited_for() {
        let mut batcher = Batcher::new(LIMITS);
        batcher.add_row(10);
        batcher.add_row(10);
        assert!(!batcher.is_full());
        batcher.add_row(10);
        assert!(batcher.is_full());
        batcher.clear();
        batcher.add_row(1000);
        assert!(batcher.is_full());
    }

    #[test]
    fn waiting_depends_on_what_waits() {
        let start = Instant::now();
        let mut batcher = Batcher::new(LIMITS);
        assert_eq!(batcher.deadline(true), None);
        batcher.touch(start);
        batcher.touch(start + Duration::from_secs(9));
        assert_eq!(batcher.deadline(true), Some(start + IDLE_CHECKPOINT), "a position alone can wait");
        batcher.add_row(1);
        assert_eq!(batcher.deadline(false), Some(start + LIMITS.max_wait));
        assert_eq!(batcher.deadline(true), Some(start + LIMITS.min_wait));
        assert!(!batcher.is_due(start, true));
        assert!(batcher.is_due(start + LIMITS.min_wait, true));
    }

    #[test]
    fn a_fence_makes_a_position_urgent() {
        let start = Instant::now();
        let mut batcher = Batcher::new(LIMITS);
        batcher.touch(start);
        batcher.add_fence();
        assert_eq!(batcher.deadline(true), Some(start + LIMITS.min_wait));
    }
}
