//! What the clients saw: counters while they run, and the result when they have stopped.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;

/// Shared between the clients and whoever watches. Only what the server has acknowledged is counted.
#[derive(Debug, Default)]
pub struct LoadCounters {
    rows: AtomicU64,
    statements: AtomicU64,
}

impl LoadCounters {
    pub fn rows(&self) -> u64 {
        self.rows.load(Relaxed)
    }

    pub fn statements(&self) -> u64 {
        self.statements.load(Relaxed)
    }

    pub(super) fn answered(&self, rows: u64) {
        self.rows.fetch_add(rows, Relaxed);
        self.statements.fetch_add(1, Relaxed);
    }
}

/// A load from its start to its end, all clients together.
#[derive(Clone, Debug)]
pub struct LoadResult {
    /// Rows and statements that the server acknowledged (`simple-update` counts transactions as statements).
    pub rows: u64,
    pub statements: u64,
    /// Statements that the server refused.
    pub errors: u64,
    pub first_error: Option<String>,
    /// Statements whose answer never came: dropped at the hard stop or with a lost connection. They may be committed.
    pub unanswered: u64,
    /// Statements of an open loop whose time came before the end and which were never sent: the load could not keep up.
    pub unsent: u64,
    pub started: Instant,
    /// When the last client had its last answer.
    pub ended: Instant,
    /// Microseconds per answered statement: in an open loop from the intended send, in a closed one from the send.
    pub latency_us: Histogram<u64>,
    /// From send to answer.
    pub mean_latency_s: f64,
    /// From an answer to the client's next send.
    pub mean_think_s: f64,
    /// The latest that an idle client ever was behind its intended send, by its own fault.
    pub max_wake_late: Duration,
    /// Acknowledged rows in each second since the start.
    pub rows_by_second: Vec<u64>,
    pub clients: u32,
    pub threads: u32,
    /// CPU of the clients' threads, user and system.
    pub client_cpu_s: f64,
}

impl LoadResult {
    pub fn elapsed(&self) -> Duration {
        self.ended - self.started
    }

    pub fn rows_per_s(&self) -> f64 {
        self.rows as f64 / self.elapsed().as_secs_f64()
    }

    /// Share of their threads' time in which the clients were busy, 0 to 1. Near 1 the load, not the server, is the limit.
    pub fn saturation(&self) -> f64 {
        self.client_cpu_s / (self.elapsed().as_secs_f64() * f64::from(self.threads))
    }
}

/// What the clients of one thread write down.
pub(super) struct Log {
    start: Instant,
    pub latency_us: Histogram<u64>,
    pub service: Duration,
    pub think: Duration,
    pub rows: u64,
    pub statements: u64,
    pub errors: u64,
    pub first_error: Option<String>,
    pub unanswered: u64,
    pub unsent: u64,
    pub max_wake_late: Duration,
    pub rows_by_second: Vec<u64>,
    pub ended: Instant,
}

impl Log {
    pub fn new(start: Instant) -> Self {
        Log {
            start,
            latency_us: Histogram::new(3).expect("three digits are allowed"),
            service: Duration::ZERO,
            think: Duration::ZERO,
            rows: 0,
            statements: 0,
            errors: 0,
            first_error: None,
            unanswered: 0,
            unsent: 0,
            max_wake_late: Duration::ZERO,
            rows_by_second: Vec::new(),
            ended: start,
        }
    }

    /// An acknowledged statement. `intended` is when it should have been sent, or when it was.
    pub fn answered(&mut self, intended: Instant, sent: Instant, now: Instant, rows: u64) {
        self.rows += rows;
        self.statements += 1;
        self.service += now - sent;
        self.latency_us += (now - intended).as_micros() as u64;
        self.ended = self.ended.max(now);
        let second = (now - self.start).as_secs() as usize;
        if self.rows_by_second.len() <= second {
            self.rows_by_second.resize(second + 1, 0);
        }
        self.rows_by_second[second] += rows;
    }

    pub fn refused(&mut self, error: &tokio_postgres::Error) {
        self.errors += 1;
        self.first_error.get_or_insert_with(|| describe(error));
    }

    /// The connection went away under a statement, which may be committed.
    pub fn lost(&mut self, error: &tokio_postgres::Error) {
        self.unanswered += 1;
        self.first_error.get_or_insert_with(|| describe(error));
    }

    fn add(&mut self, other: Log) {
        self.latency_us += other.latency_us;
        self.service += other.service;
        self.think += other.think;
        self.rows += other.rows;
        self.statements += other.statements;
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
        self.unanswered += other.unanswered;
        self.unsent += other.unsent;
        self.max_wake_late = self.max_wake_late.max(other.max_wake_late);
        self.ended = self.ended.max(other.ended);
        let seconds = self.rows_by_second.len().max(other.rows_by_second.len());
        self.rows_by_second.resize(seconds, 0);
        for (sum, rows) in self.rows_by_second.iter_mut().zip(&other.rows_by_second) {
            *sum += rows;
        }
    }
}

/// The server's own words where it spoke, else the driver's.
fn describe(error: &tokio_postgres::Error) -> String {
    error.as_db_error().map_or_else(|| error.to_string(), |refusal| refusal.to_string())
}

/// All threads' logs in one result.
pub(super) fn merge(logs: Vec<Log>, start: Instant, clients: u32, client_cpu_s: f64) -> LoadResult {
    let threads = logs.len() as u32;
    let mut all = Log::new(start);
    logs.into_iter().for_each(|log| all.add(log));
    let per_statement = |total: Duration| total.as_secs_f64() / all.statements.max(1) as f64;
    LoadResult {
        mean_latency_s: per_statement(all.service),
        mean_think_s: per_statement(all.think),
        rows: all.rows,
        statements: all.statements,
        errors: all.errors,
        first_error: all.first_error,
        unanswered: all.unanswered,
        unsent: all.unsent,
        started: start,
        ended: all.ended,
        latency_us: all.latency_us,
        max_wake_late: all.max_wake_late,
        rows_by_second: all.rows_by_second,
        clients,
        threads,
        client_cpu_s,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_add_up() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let (mut one, mut two) = (Log::new(start), Log::new(start));
        one.answered(at(0), at(10), at(30), 100);
        two.answered(at(1100), at(1100), at(1140), 100);
        two.unsent = 3;
        let result = merge(vec![one, two], start, 8, 0.57);
        assert_eq!((result.rows, result.statements, result.unsent), (200, 2, 3));
        assert_eq!(result.rows_by_second, [100, 100]);
        assert_eq!(result.elapsed(), Duration::from_millis(1140));
        assert!((result.mean_latency_s - 0.030).abs() < 1e-9);
        assert_eq!((result.latency_us.min(), result.latency_us.len()), (30_000, 2), "from the intended send");
        assert!((result.saturation() - 0.25).abs() < 1e-9);
    }

    #[test]
    fn an_empty_load_divides_by_nothing() {
        let result = merge(vec![Log::new(Instant::now())], Instant::now(), 1, 0.0);
        assert_eq!((result.mean_latency_s, result.rows), (0.0, 0));
    }
}
