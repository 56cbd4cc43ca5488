//! Phase marks: when each part of a probe's run began and ended (`phases.jsonl`).

use serde::{Deserialize, Serialize};

use super::RunDir;
use crate::metric::Point;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Edge {
    Start,
    End,
}

/// One line of `phases.jsonl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseMark {
    /// Microseconds since the run's start, monotonic.
    pub t_us: u64,
    /// The repeat that this belongs to, from 1; 0: outside of any (starting servers, warming up).
    pub run: u32,
    /// `probe` names the probe; other labels name the sweep's point.
    pub point: Point,
    /// `fill`, `setup`, `load`, `drain`, `verify`, …
    pub phase: String,
    pub event: Edge,
}

/// A phase with both its ends, as read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseSpan {
    pub run: u32,
    pub point: Point,
    pub phase: String,
    pub start_us: u64,
    /// `None`: the run ended before the phase did.
    pub end_us: Option<u64>,
}

/// Pairs starts with ends, in the order of the starts. An end without a start is left out.
pub fn spans(marks: &[PhaseMark]) -> Vec<PhaseSpan> {
    let mut spans: Vec<PhaseSpan> = Vec::new();
    for mark in marks {
        match mark.event {
            Edge::Start => spans.push(PhaseSpan {
                run: mark.run,
                point: mark.point.clone(),
                phase: mark.phase.clone(),
                start_us: mark.t_us,
                end_us: None,
            }),
            Edge::End => {
                let open = spans.iter_mut().rev().find(|span| is_open_for(span, mark));
                if let Some(span) = open {
                    span.end_us = Some(mark.t_us);
                }
            }
        }
    }
    spans
}

fn is_open_for(span: &PhaseSpan, mark: &PhaseMark) -> bool {
    span.end_us.is_none() && span.phase == mark.phase && span.run == mark.run && span.point == mark.point
}

/// A phase under way. Marks its end when it is ended or dropped, so that an error or Ctrl-C leaves whole spans.
#[must_use = "the phase ends when this is dropped"]
pub struct OpenPhase {
    dir: RunDir,
    mark: PhaseMark,
    ended: bool,
}

impl OpenPhase {
    pub(super) fn new(dir: RunDir, mark: PhaseMark) -> Self {
        OpenPhase { dir, mark, ended: false }
    }

    /// When it began, microseconds since the run's start.
    pub fn start_us(&self) -> u64 {
        self.mark.t_us
    }

    /// Ends it now; returns that instant, microseconds since the run's start.
    pub fn end(mut self) -> anyhow::Result<u64> {
        self.write_end()
    }

    fn write_end(&mut self) -> anyhow::Result<u64> {
        self.ended = true;
        let t_us = self.dir.clock().now_us();
        self.dir.write_phase(&PhaseMark { t_us, event: Edge::End, ..self.mark.clone() })?;
        Ok(t_us)
    }
}

impl Drop for OpenPhase {
    fn drop(&mut self) {
        if !self.ended
            && let Err(error) = self.write_end()
        {
            tracing::warn!("the end of phase {} is not recorded: {error:#}", self.mark.phase);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::point;

    fn mark(t_us: u64, run: u32, phase: &str, event: Edge) -> PhaseMark {
        PhaseMark { t_us, run, point: point([("probe", "drain")]), phase: phase.to_owned(), event }
    }

    #[test]
    fn pairs_nested_repeated_and_open_phases() {
        let marks = [
            mark(1, 1, "run", Edge::Start),
            mark(2, 1, "load", Edge::Start),
            mark(3, 1, "load", Edge::End),
            mark(4, 1, "run", Edge::End),
            mark(5, 2, "load", Edge::Start),
            mark(6, 9, "load", Edge::End),
        ];
        let ends: Vec<_> = spans(&marks).into_iter().map(|s| (s.phase, s.start_us, s.end_us)).collect();
        let expected = [("run", 1, Some(4)), ("load", 2, Some(3)), ("load", 5, None)]
            .map(|(p, s, e)| (p.to_owned(), s, e));
        assert_eq!(ends, expected);
    }
}
