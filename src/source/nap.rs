//! When to read the replication socket: at once, or after a nap. Pure.
//!
//! The walsender sends each row with a system call of its own, and waking a receiver for every one costs the *walsender*
//! more than decoding does. A receiver that is behind therefore lets the socket fill for a moment before it reads: over
//! loopback TCP this more than doubles the rate, at a fiftieth of the receiver's CPU (docs/measuring.md). With nothing
//! queued it must answer at once, so a nap follows only a read that did not have to wait.
//!
//! The nap's length follows what each read finds: a socket found nearly full has made the sender wait, so the next nap
//! is shorter; one found nearly empty was woken for too little, so it is longer. A fixed nap loses most of the gain on
//! another machine or another socket.

use std::time::Duration;

/// A read that waited longer than this found the source idle.
const IDLE_WAIT: Duration = Duration::from_micros(200);
const SHORTEST: Duration = Duration::from_micros(50);

/// Decides, from what the last reads found, how long to nap before the next.
#[derive(Debug, Clone)]
pub struct Nap {
    length: Duration,
    longest: Duration,
    /// What the socket can hold, bytes.
    capacity: usize,
    busy: bool,
}

impl Nap {
    /// For a socket that holds about `capacity` bytes before its sender must wait.
    pub fn new(capacity: usize, longest: Duration) -> Self {
        Nap { length: longest / 2, longest, capacity: capacity.max(1), busy: false }
    }

    /// The kernel has changed the socket's size (TCP receive buffers grow with what is read at once).
    pub fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity.max(1);
    }

    /// How long to nap before the next read; `None`: not at all.
    pub fn before_read(&self) -> Option<Duration> {
        self.busy.then_some(self.length)
    }

    /// The source had something ready at the last read.
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// A read has returned `bytes` after waiting for `waited` (the nap before it not counted).
    pub fn observe(&mut self, bytes: usize, waited: Duration) {
        self.busy = waited < IDLE_WAIT;
        if !self.busy {
            return;
        }
        let length = if bytes > self.capacity / 3 * 2 {
            self.length * 3 / 4
        } else if bytes < self.capacity / 3 {
            self.length * 5 / 4
        } else {
            self.length
        };
        self.length = length.clamp(SHORTEST, self.longest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_millis(2);

    #[test]
    fn an_idle_source_is_answered_at_once() {
        let mut nap = Nap::new(100_000, LONGEST);
        assert_eq!(nap.before_read(), None);
        nap.observe(300, Duration::from_millis(5));
        assert_eq!(nap.before_read(), None, "it had to wait: the source is idle");
        nap.observe(300, Duration::ZERO);
        assert!(nap.before_read().is_some(), "more was ready: it is behind");
    }

    #[test]
    fn the_length_settles_where_the_socket_is_about_half_full() {
        for bytes_per_ms in [10_000, 75_000, 300_000] {
            let capacity = 100_000;
            let mut nap = Nap::new(capacity, LONGEST);
            nap.observe(1, Duration::ZERO);
            let mut found = 0;
            for _ in 0..200 {
                let length = nap.before_read().expect("it is behind");
                found = (bytes_per_ms * length.as_micros() as usize / 1000).min(capacity);
                nap.observe(found, Duration::ZERO);
            }
            let longest_reached = nap.before_read() == Some(LONGEST);
            assert!(
                longest_reached || (capacity / 3..=capacity / 3 * 2).contains(&found),
                "{bytes_per_ms}: {found}"
            );
        }
    }
}
