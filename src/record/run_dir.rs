//! Creating and writing a run directory.
//!
//! Append-only files get whole lines by one `write` each, unbuffered: what exists is on its way to disk when the call
//! returns, and a kill tears at most the last line. `manifest.json` and `outcome.json` are replaced atomically.

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use rand::RngExt;
use serde::Serialize;

use super::{Edge, Manifest, OpenPhase, Outcome, PhaseMark, RunClock, Status, histogram, manifest::mask};
use crate::{
    failure::Failure,
    metric::{Point, Sample, Values},
};

pub const MANIFEST: &str = "manifest.json";
pub const PHASES: &str = "phases.jsonl";
pub const SAMPLES: &str = "samples.jsonl";
pub const LATENCY: &str = "latency.hlog";
pub const OUTCOME: &str = "outcome.json";
pub const REPORT: &str = "report.md";

/// A run directory being written. Cheap to clone; every method may be called from any task or thread.
#[derive(Clone)]
pub struct RunDir(Arc<Inner>);

struct Inner {
    path: PathBuf,
    clock: RunClock,
    manifest: Mutex<Manifest>,
    phases: Mutex<File>,
    samples: Mutex<File>,
    latency: Mutex<File>,
}

impl RunDir {
    /// Makes `<base>/<yyyymmddThhmmssZ>-<pipeline>-<4 hex>/` with its manifest and empty logs, and starts its clock.
    ///
    /// Errors: the folder cannot be made or written (environment).
    pub fn create(base: &Path, manifest: Manifest) -> Result<RunDir> {
        let clock = RunClock::start();
        let path = create_folder(base, &manifest.pipeline, clock.anchor().unix_us)?;
        let manifest = Manifest { clock: clock.anchor(), ..manifest };
        let inner = Inner {
            clock,
            phases: append_to(&path, PHASES)?,
            samples: append_to(&path, SAMPLES)?,
            latency: append_to(&path, LATENCY)?,
            manifest: Mutex::new(manifest),
            path,
        };
        let dir = RunDir(Arc::new(inner));
        dir.append(&dir.0.latency, LATENCY, &histogram::header(clock.anchor()))?;
        dir.update_manifest(|_| {})?;
        Ok(dir)
    }

    /// Reads a directory back; see [`super::read`].
    pub fn open(path: &Path) -> Result<super::RunData> {
        super::read::open(path)
    }

    pub fn path(&self) -> &Path {
        &self.0.path
    }

    pub fn clock(&self) -> RunClock {
        self.0.clock
    }

    /// Changes the manifest, masks what looks like a secret in its evidence (a `primary_conninfo` holds a password),
    /// and replaces the file atomically.
    pub fn update_manifest(&self, change: impl FnOnce(&mut Manifest)) -> Result<()> {
        let mut manifest = lock(&self.0.manifest);
        change(&mut manifest);
        manifest.evidence.values_mut().for_each(mask);
        replace(&self.0.path.join(MANIFEST), &pretty(&*manifest)?)
    }

    /// Writes the run's last status.
    pub fn finish(&self, status: Status, error: Option<String>) -> Result<()> {
        self.update_manifest(|manifest| (manifest.status, manifest.error) = (status, error))
    }

    /// Marks the start of a phase; its end is marked when the result is ended or dropped.
    pub fn start_phase(&self, run: u32, point: &Point, phase: &str) -> Result<OpenPhase> {
        let t_us = self.0.clock.now_us();
        let mark = PhaseMark { t_us, run, point: point.clone(), phase: phase.to_owned(), event: Edge::Start };
        self.write_phase(&mark)?;
        Ok(OpenPhase::new(self.clone(), mark))
    }

    /// Appends one mark. Most callers want [`RunDir::start_phase`].
    pub fn write_phase(&self, mark: &PhaseMark) -> Result<()> {
        self.append_line(&self.0.phases, PHASES, mark)
    }

    /// Appends one sample. Values that are no finite numbers are left out: JSON has none.
    pub fn write_sample(&self, sample: &Sample) -> Result<()> {
        if sample.values.values().all(|value| value.is_finite()) {
            return self.append_line(&self.0.samples, SAMPLES, sample);
        }
        let mut finite = sample.clone();
        finite.values.retain(|_, value| value.is_finite());
        self.append_line(&self.0.samples, SAMPLES, &finite)
    }

    /// Appends a sample taken at `t_us`.
    pub fn sample(&self, t_us: u64, meter: &str, values: Values) -> Result<()> {
        self.write_sample(&Sample { t_us, meter: meter.to_owned(), values })
    }

    /// Appends an interval's histogram (microseconds) of one operation, such as `insert`. The interval is
    /// `start_us..end_us` on the run's clock.
    ///
    /// Errors: the operation's name holds a comma, a space or a line's end; the file cannot be written.
    pub fn write_latency(
        &self,
        operation: &str,
        start_us: u64,
        end_us: u64,
        latencies: &Histogram<u64>,
    ) -> Result<()> {
        let line = histogram::line(operation, start_us, end_us, latencies)?;
        self.append(&self.0.latency, LATENCY, &line)
    }

    /// Replaces `outcome.json` atomically. May be called after each probe: later calls win.
    pub fn write_outcome(&self, outcome: &Outcome) -> Result<()> {
        replace(&self.0.path.join(OUTCOME), &pretty(outcome)?)
    }

    fn append_line(&self, file: &Mutex<File>, name: &str, line: &impl Serialize) -> Result<()> {
        let mut bytes = serde_json::to_vec(line).with_context(|| format!("serialise a line of {name}"))?;
        bytes.push(b'\n');
        self.append(file, name, &bytes)
    }

    fn append(&self, file: &Mutex<File>, name: &str, bytes: &[u8]) -> Result<()> {
        lock(file).write_all(bytes).with_context(|| format!("write {}", self.0.path.join(name).display()))
    }
}

/// Replaces `report.md` in a run directory atomically.
pub fn write_report(run: &Path, markdown: &str) -> Result<()> {
    replace(&run.join(REPORT), markdown.as_bytes())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("nobody panics while holding it")
}

/// Tries fresh suffixes until a folder of its own could be made: two runs may start in the same second.
fn create_folder(base: &Path, pipeline: &str, unix_us: i64) -> Result<PathBuf> {
    let failed = |path: &Path, error: std::io::Error| {
        Failure::environment(format!("cannot make the run directory {}: {error}", path.display()))
            .hint("name a writable folder, or change to one")
    };
    fs::create_dir_all(base).map_err(|error| failed(base, error))?;
    loop {
        let path = base.join(folder_name(pipeline, unix_us, rand::rng().random())?);
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(failed(&path, error).into()),
        }
    }
}

fn folder_name(pipeline: &str, unix_us: i64, suffix: u16) -> Result<String> {
    let started = jiff::Timestamp::from_microsecond(unix_us).context("the wall clock is out of range")?;
    let safe = |c: char| if c.is_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' };
    let name: String = pipeline.chars().map(safe).collect();
    Ok(format!("{}-{name}-{suffix:04x}", started.strftime("%Y%m%dT%H%M%SZ")))
}

fn append_to(folder: &Path, name: &str) -> Result<Mutex<File>> {
    let path = folder.join(name);
    let file = OpenOptions::new().create(true).append(true).open(&path);
    file.map(Mutex::new).with_context(|| format!("create {}", path.display()))
}

fn pretty(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec_pretty(value).context("serialise")?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Writes beside `path`, syncs, renames: a reader sees the old file or the new one, whole.
fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || -> Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(path.parent().context("a file in a folder")?)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        fs::set_permissions(file.path(), std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
        file.persist(path)?;
        Ok(())
    };
    write().with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_names_are_utc_and_safe() {
        let name = folder_name("quick start/x", 1_764_558_000_000_000, 0xab).unwrap();
        assert_eq!(name, "20251201T030000Z-quick-start-x-00ab");
    }
}
