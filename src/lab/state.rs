//! What a running lab tells other shells: one JSON file (mode 0600) per lab in a runtime folder.
//!
//! A pid alone does not name a process, as pids come round again: owner and nodes are kept with their start time. A
//! lab whose owner is gone is stale: its servers die with the owner, but its folder stays; whoever looks next removes
//! both.

use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::{
    failure::Failure,
    host::{process, usage},
};

/// A process, for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    pub pid: u32,
    /// Clock ticks since boot.
    pub start_ticks: u64,
}

impl ProcessId {
    /// `None`: there is no such process.
    pub fn of(pid: u32) -> Option<ProcessId> {
        usage::start_ticks(pid).map(|start_ticks| ProcessId { pid, start_ticks })
    }

    pub fn is_alive(self) -> bool {
        usage::start_ticks(self.pid) == Some(self.start_ticks)
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PostgresState {
    pub process: Option<ProcessId>,
    pub host: String,
    pub port: u16,
    pub socket_folder: PathBuf,
    pub user: String,
    pub database: String,
    /// In libpq's pgpass format, mode 0600.
    pub passfile: PathBuf,
    pub bin: PathBuf,
    pub log: PathBuf,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClickHouseState {
    pub process: Option<ProcessId>,
    pub url: String,
    pub host: String,
    pub http_port: u16,
    pub tcp_port: u16,
    pub user: String,
    pub database: String,
    /// The password alone, mode 0600.
    pub password_file: PathBuf,
    pub log: PathBuf,
}

/// A lab, as its file describes it. The nodes' processes are those of its start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LabState {
    pub name: String,
    pub topology: String,
    /// UTC.
    pub started_at: String,
    pub owner: ProcessId,
    pub data_folder: PathBuf,
    /// Whether the data folder stays when the lab goes down.
    pub keep: bool,
    /// Both are `None` while the lab starts.
    pub postgres: Option<PostgresState>,
    pub clickhouse: Option<ClickHouseState>,
}

impl LabState {
    pub fn is_ready(&self) -> bool {
        self.postgres.is_some() && self.clickhouse.is_some()
    }
}

/// `$XDG_STATE_HOME/cdcprobe/labs`, else `~/.local/state/cdcprobe/labs`.
pub fn default_folder() -> Result<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let states =
        absolute("XDG_STATE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/state")));
    let states = states.ok_or_else(|| {
        Failure::environment("there is no HOME to keep the lab's state in")
            .hint("set XDG_STATE_HOME to a folder")
    })?;
    Ok(states.join("cdcprobe/labs"))
}

/// Create the folder of the state files, ours alone, if it is missing.
pub fn prepare_folder(folder: &Path) -> Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.with_context(|| format!("create {}", folder.display()))
}

/// The file of one running lab, removed when dropped.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
}

impl StateFile {
    /// Claim the name of `state`. Error: a living lab has it.
    pub fn create(folder: &Path, state: &LabState) -> Result<StateFile> {
        prepare_folder(folder)?;
        check_name(&state.name)?;
        let path = file_of(folder, &state.name);
        let file = match open_new(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let message = format!("a lab named {} exists already", state.name);
                bail!(
                    Failure::config(message).hint("choose another --name, or stop it: lab down --name NAME")
                );
            }
            other => other.with_context(|| format!("create {}", path.display()))?,
        };
        let claimed = StateFile { path };
        write(file, state)?;
        Ok(claimed)
    }

    /// Replace its content at once: readers see the old or the new one.
    pub fn update(&self, state: &LabState) -> Result<()> {
        let next = self.path.with_extension("next");
        let _ = fs::remove_file(&next);
        write(open_new(&next).with_context(|| format!("create {}", next.display()))?, state)?;
        fs::rename(&next, &self.path).with_context(|| format!("replace {}", self.path.display()))
    }
}

impl Drop for StateFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn open_new(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn write(mut file: File, state: &LabState) -> Result<()> {
    file.write_all(&serde_json::to_vec_pretty(state)?).context("write the lab's state")
}

fn file_of(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.json"))
}

/// A name is a file's name and appears in shells: letters, digits, `-` and `_`, at most 40.
pub fn check_name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || name.len() > 40 || !name.chars().all(plain) {
        let message = format!("{name:?} is no name for a lab");
        bail!(Failure::config(message).hint("letters, digits, - and _, at most 40 of them"));
    }
    Ok(())
}

/// Error: no name for a lab, or a living lab has it.
pub fn check_free(folder: &Path, name: &str) -> Result<()> {
    check_name(name)?;
    match list(folder)?.iter().any(|lab| lab.name == name) {
        true => bail!(name_taken(name)),
        false => Ok(()),
    }
}

fn name_taken(name: &str) -> Failure {
    Failure::config(format!("a lab named {name} exists already"))
        .hint(format!("choose another --name, or stop it: cdcprobe lab down --name {name}"))
}

/// All labs whose owner lives, sorted by name. Stale ones are cleaned up on the way.
pub fn list(folder: &Path) -> Result<Vec<LabState>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.with_context(|| format!("read {}", folder.display()))?,
    };
    let mut labs = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.extension().is_some_and(|extension| extension == "json")
            && let Some(state) = read(&path)
        {
            match state.owner.is_alive() {
                true => labs.push(state),
                false => clean_up(&path, &state),
            }
        }
    }
    labs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(labs)
}

/// `None`: gone meanwhile, or not (yet) a whole state.
fn read(path: &Path) -> Option<LabState> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Of a lab whose owner is dead: end what still runs, remove its folder and its file.
fn clean_up(path: &Path, state: &LabState) {
    let postgres = state.postgres.as_ref().and_then(|node| node.process);
    let clickhouse = state.clickhouse.as_ref().and_then(|node| node.process);
    for process in [postgres, clickhouse].into_iter().flatten() {
        process::kill_leftover(process.pid, process.start_ticks);
    }
    if !state.keep && super::is_lab_folder(&state.data_folder) {
        let _ = fs::remove_dir_all(&state.data_folder);
    }
    let _ = fs::remove_file(path.with_extension("log"));
    let _ = fs::remove_file(path);
}

/// Where the lab `name` writes when it runs in the background.
pub fn background_log(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.log"))
}

/// The one lab that is meant: by name, or the only one that runs.
pub fn find(folder: &Path, name: Option<&str>) -> Result<LabState> {
    let mut labs = list(folder)?;
    match name {
        Some(name) => labs.retain(|lab| lab.name == name),
        None if labs.len() > 1 => {
            let names: Vec<&str> = labs.iter().map(|lab| lab.name.as_str()).collect();
            let message = format!("{} labs are running: {}", labs.len(), names.join(", "));
            bail!(Failure::config(message).hint("choose one with --name"));
        }
        None => {}
    }
    labs.pop().ok_or_else(|| {
        let message = match name {
            Some(name) => format!("no lab named {name} is running"),
            None => "no lab is running".to_owned(),
        };
        Failure::environment(message).hint("start one: cdcprobe lab up").into()
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn state(name: &str, owner: ProcessId, data_folder: &Path) -> LabState {
        LabState {
            name: name.to_owned(),
            topology: "cdc".to_owned(),
            started_at: String::new(),
            owner,
            data_folder: data_folder.to_owned(),
            keep: false,
            postgres: None,
            clickhouse: None,
        }
    }

    fn ourselves() -> ProcessId {
        ProcessId::of(std::process::id()).unwrap()
    }

    /// Our pid, but another start: as if the pid had come round.
    fn dead() -> ProcessId {
        ProcessId { start_ticks: 1, ..ourselves() }
    }

    #[test]
    fn a_name_belongs_to_one_living_lab_and_its_file_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let state = state("a", ourselves(), &data);
        let file = StateFile::create(folder.path(), &state).unwrap();
        let mode = fs::metadata(folder.path().join("a.json")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let second = StateFile::create(folder.path(), &state).unwrap_err();
        assert!(second.to_string().contains("exists already"));
        assert_eq!(find(folder.path(), None).unwrap().name, "a");
        drop(file);
        assert!(find(folder.path(), Some("a")).unwrap_err().to_string().contains("no lab named a"));
    }

    #[test]
    fn a_stale_lab_is_cleaned_up_but_only_a_folder_that_is_a_labs_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let lab_folder = super::super::new_lab_folder(folder.path()).unwrap().keep();
        let foreign = folder.path().join("home");
        fs::create_dir(&foreign).unwrap();
        for (name, data) in [("stale", &lab_folder), ("forged", &foreign)] {
            std::mem::forget(StateFile::create(folder.path(), &state(name, dead(), data)).unwrap());
        }
        assert!(list(folder.path()).unwrap().is_empty());
        assert!(!lab_folder.exists() && foreign.exists());
        assert!(!folder.path().join("stale.json").exists());
    }

    #[test]
    fn two_labs_want_a_name() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let _files: Vec<StateFile> = ["b", "a"]
            .map(|name| StateFile::create(folder.path(), &state(name, ourselves(), &data)).unwrap())
            .into();
        assert!(find(folder.path(), None).unwrap_err().to_string().contains("2 labs are running: a, b"));
        assert_eq!(find(folder.path(), Some("b")).unwrap().name, "b");
    }

    #[test]
    fn names_that_would_leave_the_folder_are_refused() {
        for name in ["", "a/b", "..", "a b", &"x".repeat(41)] {
            assert!(check_name(name).is_err(), "{name}");
        }
        check_name("lab-1_B").unwrap();
    }
}
