//! When each statement of each client is meant to be sent.
//!
//! In an open loop the times are fixed before the run, whatever the server does, and latency counts from them: a server
//! that stalls is charged for every statement that should have been sent meanwhile.

use std::time::Duration;

/// Closed: each client sends as soon as it has its answer. Open: at a rate over all clients, evenly spaced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Schedule {
    Closed,
    Open { rate_per_s: f64, clients: u32 },
}

impl Schedule {
    /// `rate_per_s` counts statements of all clients together; `None` is a closed loop.
    pub fn new(rate_per_s: Option<f64>, clients: u32) -> Self {
        match rate_per_s {
            Some(rate_per_s) => Schedule::Open { rate_per_s, clients },
            None => Schedule::Closed,
        }
    }

    /// Time from the start to the intended send of a client's statement number `ordinal` (from 0); `None` in a closed
    /// loop. Clients take turns, so that the statements of all are evenly spaced.
    pub fn intended(self, client: u32, ordinal: u64) -> Option<Duration> {
        match self {
            Schedule::Closed => None,
            Schedule::Open { rate_per_s, clients } => {
                let turn = ordinal * u64::from(clients) + u64::from(client);
                Some(Duration::from_secs_f64(turn as f64 / rate_per_s))
            }
        }
    }

    /// How many statements a client is meant to send within `duration`; 0 in a closed loop, which means none.
    pub fn intended_within(self, client: u32, duration: Duration) -> u64 {
        match self {
            Schedule::Closed => 0,
            Schedule::Open { rate_per_s, clients } => {
                let turns = duration.as_secs_f64() * rate_per_s;
                ((turns - f64::from(client)) / f64::from(clients)).ceil().max(0.0) as u64
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_take_turns_at_the_rate() {
        let open = Schedule::new(Some(100.0), 4);
        let millis = |client, ordinal| open.intended(client, ordinal).expect("an open loop").as_millis();
        assert_eq!(
            [millis(0, 0), millis(1, 0), millis(3, 0), millis(0, 1), millis(3, 24)],
            [0, 10, 30, 40, 990]
        );
        let all: u64 = (0..4).map(|client| open.intended_within(client, Duration::from_secs(1))).sum();
        assert_eq!(all, 100);
    }

    #[test]
    fn intended_within_counts_the_times_before_the_end() {
        for (rate, clients, seconds) in [(1.0, 3, 1.5), (10.0, 3, 0.95), (7.0, 2, 2.2), (0.5, 8, 1.0)] {
            let schedule = Schedule::new(Some(rate), clients);
            let end = Duration::from_secs_f64(seconds);
            for client in 0..clients {
                let counted = (0..100).filter(|&n| schedule.intended(client, n).expect("open") < end).count();
                assert_eq!(
                    schedule.intended_within(client, end),
                    counted as u64,
                    "{rate} {clients} {client}"
                );
            }
        }
    }

    #[test]
    fn a_closed_loop_intends_nothing() {
        assert_eq!(Schedule::new(None, 4).intended(0, 5), None);
    }
}
