//! One monotonic clock for a run, tied to the wall clock once.
//!
//! Differences between instants of a run never go through the wall clock, which may be stepped while we measure. The
//! one anchor says what the wall clock showed at one instant, and how well that is known.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// What the wall clock showed at one instant of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchor {
    /// Microseconds since the run's start, monotonic.
    pub t_us: u64,
    /// Microseconds since 1970-01-01 UTC.
    pub unix_us: i64,
    /// The wall clock was read within ± this of `t_us`, microseconds.
    pub uncertainty_us: u64,
}

impl Anchor {
    /// The wall clock's time at `t_us`, microseconds since 1970, as if it had never been stepped.
    pub fn unix_us(&self, t_us: u64) -> i64 {
        self.unix_us.saturating_add_unsigned(t_us).saturating_sub_unsigned(self.t_us)
    }
}

/// Counts microseconds from the run's start.
#[derive(Clone, Copy, Debug)]
pub struct RunClock {
    start: Instant,
    anchor: Anchor,
}

impl RunClock {
    /// Starts now, and anchors to the wall clock by the tightest of a few readings.
    pub fn start() -> Self {
        let start = Instant::now();
        let readings = (0..8).map(|_| read_wall_clock(start));
        let anchor = readings.min_by_key(|a| a.uncertainty_us).expect("eight readings were taken");
        RunClock { start, anchor }
    }

    /// Microseconds from the run's start to `at`; 0 for instants before it.
    pub fn t_us(&self, at: Instant) -> u64 {
        micros(at.saturating_duration_since(self.start))
    }

    pub fn now_us(&self) -> u64 {
        self.t_us(Instant::now())
    }

    pub fn anchor(&self) -> Anchor {
        self.anchor
    }
}

fn read_wall_clock(start: Instant) -> Anchor {
    let before = start.elapsed();
    let wall = SystemTime::now();
    let width = start.elapsed() - before;
    let unix = wall.duration_since(UNIX_EPOCH).unwrap_or_default();
    Anchor {
        t_us: micros(before + width / 2),
        unix_us: i64::try_from(unix.as_micros()).unwrap_or(i64::MAX),
        uncertainty_us: micros(width / 2) + 1,
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_from_the_start_and_never_below_zero() {
        let before = Instant::now();
        let clock = RunClock::start();
        assert_eq!(clock.t_us(before), 0);
        assert_eq!(clock.t_us(clock.start + Duration::from_millis(1500)), 1_500_000);
        assert!(clock.now_us() >= clock.anchor().t_us);
    }

    #[test]
    fn anchor_ties_both_clocks() {
        let anchor = Anchor { t_us: 10, unix_us: 1_000_000, uncertainty_us: 1 };
        assert_eq!(anchor.unix_us(10), 1_000_000);
        assert_eq!(anchor.unix_us(0), 999_990);
        assert_eq!(anchor.unix_us(2_000_010), 3_000_000);
    }
}
