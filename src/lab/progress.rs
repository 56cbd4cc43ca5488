//! How far the lab's slow steps are: bars on a terminal, plain lines elsewhere. Always on stderr.

use std::{
    io::{IsTerminal, Read},
    time::{Duration, Instant},
};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// Where steps are shown.
#[derive(Clone, Default)]
pub struct Progress {
    bars: Option<MultiProgress>,
    silent: bool,
}

impl Progress {
    /// Bars if stderr is a terminal, else a line when a step begins and one when it is done.
    pub fn stderr() -> Progress {
        let bars = std::io::stderr().is_terminal().then(MultiProgress::new);
        Progress { bars, silent: false }
    }

    pub fn silent() -> Progress {
        Progress { bars: None, silent: true }
    }

    /// Begin a step. `total`: its size in bytes, if known.
    pub fn step(&self, what: &str, total: Option<u64>) -> Step {
        let bar = self.bars.as_ref().map(|bars| bars.add(new_bar(what, total)));
        if bar.is_none() && !self.silent {
            eprintln!("lab: {what}");
        }
        Step { what: what.to_owned(), began: Instant::now(), bar, silent: self.silent }
    }
}

fn new_bar(what: &str, total: Option<u64>) -> ProgressBar {
    let (bar, template) = match total {
        Some(total) => (ProgressBar::new(total), "{msg:44} {bar:24} {bytes}/{total_bytes} {eta}"),
        None => (ProgressBar::new_spinner(), "{msg:44} {spinner} {elapsed}"),
    };
    bar.set_style(ProgressStyle::with_template(template).expect("the template is valid"));
    bar.set_message(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

/// A step under way. Dropped without [`Step::done`], it disappears.
pub struct Step {
    what: String,
    began: Instant,
    bar: Option<ProgressBar>,
    silent: bool,
}

impl Step {
    /// Count the bytes that are read through `reader`.
    pub fn watch<R: Read>(&self, reader: R) -> impl Read + use<R> {
        self.bar.clone().unwrap_or_else(ProgressBar::hidden).wrap_read(reader)
    }

    pub fn done(self) {
        let seconds = self.began.elapsed().as_secs_f64();
        match &self.bar {
            Some(bar) => bar.println(format!("{} ({seconds:.1} s)", self.what)),
            None if !self.silent => eprintln!("lab: {}: done in {seconds:.1} s", self.what),
            None => {}
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
