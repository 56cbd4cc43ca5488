//! Lag in seconds from positions in the WAL: how old the oldest byte is that is not durable at the target.
//!
//! Bytes behind divided by a mean WAL rate is wrong as soon as the rate changes (after the writers stop it divides by
//! nothing). So the slot's samples serve as a clock of the WAL: the lag is now minus the last instant at which the
//! source's flush position was not yet past the durable one.

/// Positions of the source and of the slot, read in one query.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlotSample {
    /// Microseconds since the run's start.
    pub t_us: u64,
    pub flush_lsn: f64,
    pub confirmed_lsn: f64,
}

impl SlotSample {
    pub fn backlog_bytes(&self) -> f64 {
        (self.flush_lsn - self.confirmed_lsn).max(0.0)
    }
}

/// Seconds, at `t_us`, since the source's flush position passed `durable_lsn`; straight between samples. 0 when it has
/// not passed it. `None`: it had passed it before the first sample, or `t_us` lies before all samples.
pub fn lag_s(slot: &[SlotSample], t_us: u64, durable_lsn: f64) -> Option<f64> {
    let known = &slot[..slot.partition_point(|sample| sample.t_us <= t_us)];
    let last_not_past = known.iter().rposition(|sample| sample.flush_lsn <= durable_lsn)?;
    let before = known[last_not_past];
    // The sample after may lie after t_us: the position in between still dates the byte.
    let Some(after) = slot.get(last_not_past + 1).filter(|after| after.flush_lsn > durable_lsn) else {
        return Some(0.0);
    };
    let share = (durable_lsn - before.flush_lsn) / (after.flush_lsn - before.flush_lsn);
    let passed_us = before.t_us as f64 + share * (after.t_us - before.t_us) as f64;
    Some(((t_us as f64 - passed_us) / 1e6).max(0.0))
}

/// The lag at every sample of the slot, where it is known: `(microseconds, seconds)`.
pub fn series(slot: &[SlotSample]) -> Vec<(u64, f64)> {
    slot.iter().filter_map(|s| Some((s.t_us, lag_s(slot, s.t_us, s.confirmed_lsn)?))).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(t_s: u64, flush_lsn: f64, confirmed_lsn: f64) -> SlotSample {
        SlotSample { t_us: t_s * 1_000_000, flush_lsn, confirmed_lsn }
    }

    #[test]
    fn dates_the_oldest_byte_that_is_not_durable() {
        // 100 bytes a second until t=10, then silence; the slot moves at half of that from t=0.
        let slot: Vec<_> = (0..=20).map(|t| at(t, 100.0 * t.min(10) as f64, 50.0 * t as f64)).collect();
        assert_eq!(lag_s(&slot, 10_000_000, 500.0), Some(5.0));
        assert_eq!(lag_s(&slot, 15_000_000, 750.0), Some(7.5), "the WAL's silence does not stop the clock");
        assert_eq!(lag_s(&slot, 20_000_000, 1000.0), Some(0.0));
    }

    #[test]
    fn an_idle_hour_before_the_first_write_is_no_lag() {
        let slot =
            [at(0, 500.0, 500.0), at(3600, 500.0, 500.0), at(3601, 600.0, 500.0), at(3602, 700.0, 500.0)];
        assert_eq!(lag_s(&slot, 3_602_000_000, 500.0), Some(2.0));
    }

    #[test]
    fn what_passed_before_the_first_sample_is_unknown() {
        assert_eq!(lag_s(&[at(5, 900.0, 100.0)], 6_000_000, 100.0), None);
        assert_eq!(lag_s(&[at(5, 900.0, 100.0)], 4_000_000, 900.0), None);
        assert_eq!(lag_s(&[], 6_000_000, 100.0), None);
    }

    proptest! {
        #[test]
        fn of_a_steady_stream_is_bytes_behind_over_its_rate(rate in 1.0..1e8f64, behind_s in 0.0..20.0f64) {
            let slot: Vec<_> = (0..40).map(|t| at(t, rate * t as f64, 0.0)).collect();
            let lag = lag_s(&slot, 30_000_000, rate * (30.0 - behind_s)).unwrap();
            prop_assert!((lag - behind_s).abs() < 1e-6);
        }
    }
}
