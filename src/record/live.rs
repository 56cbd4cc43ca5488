//! What a probe shows while it runs: figures and phases, handed to whoever watches. Probes know this trait only; the
//! terminal's side is in `report`.

/// The latest figures; `None`: not known (yet, or in this phase).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LiveFigures {
    /// How far the phase is, 0 to 1.
    pub done: Option<f64>,
    /// Seconds that the phase will still take.
    pub left_s: Option<f64>,
    /// WAL that the slot has not confirmed.
    pub backlog_bytes: Option<f64>,
    /// Age of the oldest commit that is not durable at the target.
    pub lag_s: Option<f64>,
    pub write_rows_per_s: Option<f64>,
    /// Rows per second that became durable at the target, lately.
    pub pipe_rows_per_s: Option<f64>,
    /// Rows in the target.
    pub target_rows: Option<f64>,
}

/// Somebody who watches a run. Called from any task, often; must return at once.
pub trait Watcher: Send + Sync {
    /// A phase begins: `drain 2/3: load`.
    fn phase(&self, name: &str);
    fn figures(&self, figures: &LiveFigures);
    /// A sentence worth keeping, such as a warning.
    fn note(&self, text: &str);
}

/// Nobody watches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unwatched;

impl Watcher for Unwatched {
    fn phase(&self, _: &str) {}
    fn figures(&self, _: &LiveFigures) {}
    fn note(&self, _: &str) {}
}
