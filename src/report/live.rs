//! What goes by on standard error while a run is under way: one line that is redrawn on a terminal, one plain line a
//! second elsewhere.

use std::{
    io::{IsTerminal, Write},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::format;
use crate::record::live::{LiveFigures, Watcher};

const PLAIN_PERIOD: Duration = Duration::from_secs(1);

/// Somebody who shows a run on standard error.
pub fn watcher() -> Arc<dyn Watcher> {
    Arc::new(Live::on_stderr())
}

/// Shows a run on standard error.
pub struct Live {
    /// `None`: standard error is no terminal.
    bar: Option<ProgressBar>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    phase: String,
    /// When the last plain line was written; `None`: none in this phase.
    written: Option<Instant>,
}

impl Live {
    pub fn on_stderr() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{spinner} {elapsed_precise} {wide_msg}");
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
            bar.set_style(style.expect("the template is ours"));
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Live { bar, state: Mutex::default() }
    }

    fn plain(&self, line: &str) {
        // Progress that nobody can read any more is no error.
        let _ = writeln!(std::io::stderr().lock(), "{line}");
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics while holding it")
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Watcher for Live {
    fn phase(&self, name: &str) {
        *self.state() = State { phase: name.to_owned(), written: None };
        match &self.bar {
            Some(bar) => bar.set_message(name.to_owned()),
            None => self.plain(name),
        }
    }

    fn figures(&self, figures: &LiveFigures) {
        let mut state = self.state();
        let line = line(&state.phase, figures);
        match &self.bar {
            Some(bar) => bar.set_message(line),
            None if state.written.is_none_or(|at| at.elapsed() >= PLAIN_PERIOD) => {
                state.written = Some(Instant::now());
                self.plain(&line);
            }
            None => {}
        }
    }

    fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| self.plain(text)),
            None => self.plain(text),
        }
    }
}

/// Phase and what is known, in an order that stays.
fn line(phase: &str, figures: &LiveFigures) -> String {
    let rate = |value: f64| format!("{} rows/s", format::number(value.round()));
    let known = [
        figures.done.map(|done| format!("{:.0} %", done.clamp(0.0, 1.0) * 100.0)),
        figures.left_s.map(|left| format!("{} left", format::seconds(left))),
        figures.write_rows_per_s.map(|value| format!("written {}", rate(value))),
        figures.pipe_rows_per_s.map(|value| format!("piped {}", rate(value))),
        figures.backlog_bytes.map(|value| format!("backlog {}", format::quantity(value, "bytes"))),
        figures.lag_s.map(|value| format!("lag {value:.1} s")),
        figures.target_rows.map(|value| format!("target {} rows", format::number(value))),
    ];
    std::iter::once(phase.to_owned()).chain(known.into_iter().flatten()).collect::<Vec<_>>().join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_what_is_known_only() {
        let figures = LiveFigures {
            backlog_bytes: Some(1.5 * 1024.0 * 1024.0 * 1024.0),
            lag_s: Some(13.46),
            pipe_rows_per_s: Some(40_000.4),
            target_rows: Some(800_000.0),
            ..LiveFigures::default()
        };
        assert_eq!(
            line("drain 1/3", &figures),
            "drain 1/3  piped 40,000 rows/s  backlog 1.5 GiB  lag 13.5 s  target 800,000 rows"
        );
        assert_eq!(line("fill", &LiveFigures::default()), "fill");
    }
}
