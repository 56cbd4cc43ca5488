//! Reading a run directory back, whole, from nothing but its files.
//!
//! A run may have been killed: files may be missing, and the last line of a log torn. What is missing is empty, a torn
//! line is dropped, and [`RunData::notes`] says so. Damage anywhere else is an error: figures would silently differ.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;

use super::{LatencyInterval, Manifest, Outcome, PhaseMark, histogram, manifest::FORMAT_VERSION, run_dir};
use crate::{failure::Failure, metric::Sample};

/// Everything in a run directory.
#[derive(Clone, Debug)]
pub struct RunData {
    pub path: PathBuf,
    pub manifest: Manifest,
    pub phases: Vec<PhaseMark>,
    /// In the order in which they were written: by time for each meter, nearly so between meters.
    pub samples: Vec<Sample>,
    pub latencies: Vec<LatencyInterval>,
    /// `None`: the run ended before there was one.
    pub outcome: Option<Outcome>,
    /// What was odd about the files.
    pub notes: Vec<String>,
}

impl RunData {
    /// The folder's name: unique to the run.
    pub fn id(&self) -> String {
        let name = self.path.file_name().unwrap_or(self.path.as_os_str());
        name.to_string_lossy().into_owned()
    }

    /// Samples of one meter taken within `start_us..=end_us`.
    pub fn samples_of(&self, meter: &str, start_us: u64, end_us: u64) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |s| s.meter == meter && (start_us..=end_us).contains(&s.t_us))
    }
}

pub(super) fn open(path: &Path) -> Result<RunData> {
    // `.` and `..` have no name of their own.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut notes = Vec::new();
    let manifest = read_manifest(&path)?;
    Ok(RunData {
        manifest,
        phases: read_lines(&path, run_dir::PHASES, &mut notes)?,
        samples: read_lines(&path, run_dir::SAMPLES, &mut notes)?,
        latencies: read_latencies(&path, &mut notes)?,
        outcome: read_outcome(&path)?,
        notes,
        path,
    })
}

fn read_manifest(folder: &Path) -> Result<Manifest> {
    let bytes = read_optional(&folder.join(run_dir::MANIFEST))?.ok_or_else(|| {
        Failure::config(format!("{} is no run directory: it has no {}", folder.display(), run_dir::MANIFEST))
            .hint("name a folder that `cdcprobe run` made, such as one of those in runs/")
    })?;
    check_version(&bytes, run_dir::MANIFEST)?;
    parse(&bytes, run_dir::MANIFEST)
}

fn read_outcome(folder: &Path) -> Result<Option<Outcome>> {
    let Some(bytes) = read_optional(&folder.join(run_dir::OUTCOME))? else { return Ok(None) };
    check_version(&bytes, run_dir::OUTCOME)?;
    parse(&bytes, run_dir::OUTCOME).map(Some)
}

/// Looks at the version before the rest is read: a newer format may have other fields.
fn check_version(bytes: &[u8], name: &str) -> Result<()> {
    let value: serde_json::Value = parse(bytes, name)?;
    match value.get("format_version").and_then(serde_json::Value::as_u64) {
        Some(version) if version <= u64::from(FORMAT_VERSION) => Ok(()),
        Some(version) => {
            let message =
                format!("{name} has format version {version}; this cdcprobe reads up to {FORMAT_VERSION}");
            Err(Failure::config(message).hint("use the cdcprobe that made the run, or a newer one").into())
        }
        None => Err(damaged(format!("{name} says no format_version")).into()),
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8], name: &str) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| damaged(format!("{name} cannot be read: {error}")).into())
}

fn damaged(message: String) -> Failure {
    Failure::config(message)
        .hint("the run directory is damaged or was edited; take it from its original place")
}

fn read_optional(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
    }
}

/// The file up to its last complete line; notes what was cut off, and that a file is missing.
fn read_whole_lines(folder: &Path, name: &str, notes: &mut Vec<String>) -> Result<Vec<u8>> {
    let Some(mut bytes) = read_optional(&folder.join(name))? else {
        notes.push(format!("{name} is missing"));
        return Ok(Vec::new());
    };
    let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    if whole < bytes.len() {
        notes.push(format!(
            "the last line of {name} is torn and was left out: the run was killed while writing it"
        ));
        bytes.truncate(whole);
    }
    Ok(bytes)
}

fn read_lines<T: DeserializeOwned>(folder: &Path, name: &str, notes: &mut Vec<String>) -> Result<Vec<T>> {
    let bytes = read_whole_lines(folder, name, notes)?;
    let lines = bytes.split(|&byte| byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty());
    lines.map(|(at, line)| parse(line, &format!("line {} of {name}", at + 1))).collect()
}

fn read_latencies(folder: &Path, notes: &mut Vec<String>) -> Result<Vec<LatencyInterval>> {
    let bytes = read_whole_lines(folder, run_dir::LATENCY, notes)?;
    histogram::parse(&bytes).map_err(|error| damaged(format!("{}: {error:#}", run_dir::LATENCY)).into())
}
