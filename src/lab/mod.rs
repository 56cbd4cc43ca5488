//! Real servers as child processes, without docker: one PostgreSQL and one ClickHouse (topology `cdc`).
//!
//! [`Lab::start`] finds or fetches the binaries, makes a folder, starts both servers and returns when both answer.
//! Everything listens on loopback only, with random passwords. Whatever ends the lab (stop, drop, a failed start, our
//! own SIGKILL) ends the servers: see [`crate::host::process`].
//!
//! | module | what |
//! |---|---|
//! | [`install`] | where the binaries come from; fetching pinned packages |
//! | [`postgres`], [`clickhouse`] | one node each: create, start, stop, kill9 |
//! | [`state`] | the file by which other shells find a lab |
//! | [`progress`] | bars or lines for the slow steps |
//!
//! The folder lies below /var/tmp, which is a disk where /tmp may be memory: an fsync that costs nothing would
//! falsify every measurement. It must be enterable by the account that runs PostgreSQL.

pub mod clickhouse;
pub mod install;
pub mod postgres;
pub mod progress;
pub mod state;

use std::{
    fs::{self, OpenOptions},
    io::Write,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rand::{RngExt, distr::Alphanumeric};
use tempfile::TempDir;

use crate::{
    config::{Secret, SourceEndpoint, TargetEndpoint},
    failure::Failure,
    host::{
        account,
        process::{Child, Spawn},
    },
};
use clickhouse::ClickHouse;
use install::{Binaries, Choice};
use postgres::Postgres;
use progress::Progress;
use state::{ClickHouseState, LabState, PostgresState, ProcessId, StateFile};

const FOLDER_PREFIX: &str = "cdcprobe-lab-";

/// What to start. The default is right for most.
#[derive(Clone, Debug, Default)]
pub struct LabOptions {
    /// Default: generated. See [`state::check_name`].
    pub name: Option<String>,
    pub binaries: Choice,
    /// PostgreSQL settings on top of the lab's own: `("wal_level", "replica")`.
    pub postgres_settings: Vec<(String, String)>,
    /// The program that hosts the ClickHouse engine. Default: this one. Tests name the binary under test.
    pub host_program: Option<PathBuf>,
    /// Where the lab's folder is made. Default: /var/tmp, else the temporary folder.
    pub data_root: Option<PathBuf>,
    /// Where the state file is kept. Default: [`state::default_folder`].
    pub state_folder: Option<PathBuf>,
    /// Leave the data folder behind.
    pub keep: bool,
    /// Say nothing on stderr.
    pub silent: bool,
}

/// A running lab. Dropping it stops the servers and removes the folder, blocking for up to some seconds;
/// [`Lab::stop`] does the same without blocking the runtime.
// Fields drop in this order: target, source, folder, state.
#[derive(Debug)]
pub struct Lab {
    clickhouse: ClickHouse,
    postgres: Postgres,
    folder: TempDir,
    state_file: StateFile,
    state: LabState,
}

impl Lab {
    /// Start the servers and wait until both answer. If anything fails, nothing is left behind.
    pub async fn start(options: &LabOptions) -> Result<Lab> {
        let progress = if options.silent { Progress::silent() } else { Progress::stderr() };
        let binaries = install::resolve(&options.binaries, &progress).await?;
        let state_folder = options.state_folder.clone().map_or_else(state::default_folder, Ok)?;
        // Cleans up what a lab whose owner was killed has left.
        state::list(&state_folder)?;
        let folder = new_lab_folder(&data_root(options)?)?;
        let state = initial_state(options, folder.path())?;
        let state_file = StateFile::create(&state_folder, &state)?;
        let (postgres, clickhouse) = start_nodes(options, &binaries, folder.path(), &progress).await?;
        let mut lab = Lab { clickhouse, postgres, folder, state_file, state };
        lab.publish()?;
        lab.folder.disable_cleanup(options.keep);
        Ok(lab)
    }

    pub fn name(&self) -> &str {
        &self.state.name
    }

    /// The lab as `lab status --json` shows it.
    pub fn state(&self) -> &LabState {
        &self.state
    }

    /// PostgreSQL over TCP.
    pub fn source_endpoint(&self) -> SourceEndpoint {
        self.postgres.endpoint()
    }

    /// PostgreSQL over its Unix socket.
    pub fn source_unix_endpoint(&self) -> SourceEndpoint {
        self.postgres.unix_endpoint()
    }

    pub fn target_endpoint(&self) -> TargetEndpoint {
        self.clickhouse.endpoint()
    }

    /// The postmaster's. `None` after a kill.
    pub fn postgres_pid(&self) -> Option<u32> {
        self.postgres.pid()
    }

    /// `None` after a kill.
    pub fn clickhouse_pid(&self) -> Option<u32> {
        self.clickhouse.pid()
    }

    /// To kill it and start it again.
    pub fn postgres(&mut self) -> &mut Postgres {
        &mut self.postgres
    }

    /// To kill it and start it again.
    pub fn clickhouse(&mut self) -> &mut ClickHouse {
        &mut self.clickhouse
    }

    /// Data, logs and password files of both servers.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Until a server ends that was not asked to: the error says which, with its last log lines.
    pub async fn until_one_ends(&mut self) -> anyhow::Error {
        tokio::select! {
            error = self.postgres.ended() => error,
            error = self.clickhouse.ended() => error,
        }
    }

    /// Stop the servers, target first, and remove the folder unless it is kept. A kept one is shut down cleanly.
    pub async fn stop(mut self) -> Result<()> {
        self.clickhouse.stop().await?;
        match self.state.keep {
            true => self.postgres.stop().await,
            false => self.postgres.discard().await,
        }
    }

    fn publish(&mut self) -> Result<()> {
        let folder = self.folder.path();
        let passfile = folder.join("pgpass");
        let password_file = folder.join("clickhouse-password");
        write_private(&passfile, &pgpass(&self.postgres.endpoint()))?;
        write_private(&password_file, expose(self.clickhouse.endpoint().password.as_ref()))?;
        self.state.postgres = Some(postgres_state(&self.postgres, passfile));
        self.state.clickhouse = Some(clickhouse_state(&self.clickhouse, password_file));
        self.state_file.update(&self.state)
    }
}

async fn start_nodes(
    options: &LabOptions,
    binaries: &Binaries,
    folder: &Path,
    progress: &Progress,
) -> Result<(Postgres, ClickHouse)> {
    let step = progress.step("starting PostgreSQL and ClickHouse", None);
    let (pg, ch) = (folder.join("pg"), folder.join("ch"));
    let nodes =
        tokio::try_join!(start_postgres(options, binaries, &pg), start_clickhouse(options, binaries, &ch))?;
    step.done();
    Ok(nodes)
}

async fn start_postgres(options: &LabOptions, binaries: &Binaries, folder: &Path) -> Result<Postgres> {
    let settings = &options.postgres_settings;
    let mut node = Postgres::create(&binaries.postgres, folder, random_password(), settings).await?;
    node.start().await?;
    Ok(node)
}

async fn start_clickhouse(options: &LabOptions, binaries: &Binaries, folder: &Path) -> Result<ClickHouse> {
    let host_program = match &options.host_program {
        Some(program) => program.clone(),
        None => std::env::current_exe().context("find this program's own file")?,
    };
    let mut node = ClickHouse::create(&binaries.clickhouse, &host_program, folder, random_password())?;
    node.start().await?;
    Ok(node)
}

/// Start `spawn` into `slot` and try `answers` until it succeeds. Error: the child ends, with the end of its log, or
/// does not answer within `patience`; it is then left to the owner of `slot`.
///
/// Not `AsyncFn`: the compiler cannot see that its futures are Send.
async fn start_child<F: Future<Output = Result<()>>>(
    slot: &mut Option<Child>,
    spawn: &Spawn,
    patience: Duration,
    answers: impl Fn() -> F,
) -> Result<()> {
    let child = slot.insert(spawn.start()?);
    let deadline = Instant::now() + patience;
    while let Err(error) = answers().await {
        child.expect_running()?;
        if Instant::now() > deadline {
            bail!("no answer within {} s ({error:#}){}", patience.as_secs(), child.log_tail());
        }
        // Between two attempts; an end meanwhile is noticed after the next one.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

fn initial_state(options: &LabOptions, folder: &Path) -> Result<LabState> {
    let owner = ProcessId::of(std::process::id()).context("find ourselves in /proc")?;
    Ok(LabState {
        name: options.name.clone().unwrap_or_else(generated_name),
        topology: "cdc".to_owned(),
        started_at: jiff::Timestamp::now().to_string(),
        owner,
        data_folder: folder.to_owned(),
        keep: options.keep,
        postgres: None,
        clickhouse: None,
    })
}

fn postgres_state(node: &Postgres, passfile: PathBuf) -> PostgresState {
    PostgresState {
        process: node.pid().and_then(ProcessId::of),
        host: "127.0.0.1".to_owned(),
        port: node.port(),
        socket_folder: node.socket_folder(),
        user: postgres::USER.to_owned(),
        database: postgres::DATABASE.to_owned(),
        passfile,
        bin: node.program(""),
        log: node.log(),
    }
}

fn clickhouse_state(node: &ClickHouse, password_file: PathBuf) -> ClickHouseState {
    ClickHouseState {
        process: node.pid().and_then(ProcessId::of),
        url: node.endpoint().url,
        host: "127.0.0.1".to_owned(),
        http_port: node.http_port(),
        tcp_port: node.tcp_port(),
        user: clickhouse::USER.to_owned(),
        database: clickhouse::DATABASE.to_owned(),
        password_file,
        log: node.log(),
    }
}

/// Any host and port: the passfile is the lab's own, and the socket's folder counts as a host.
fn pgpass(endpoint: &SourceEndpoint) -> String {
    format!("*:*:*:{}:{}\n", endpoint.user, expose(endpoint.password.as_ref()))
}

fn expose(password: Option<&Secret>) -> &str {
    password.map_or("", Secret::expose)
}

/// `lab-` and six letters or digits.
pub fn generated_name() -> String {
    let letters =
        rand::rng().sample_iter(Alphanumeric).take(6).map(|byte| char::from(byte).to_ascii_lowercase());
    format!("lab-{}", letters.collect::<String>())
}

/// 32 letters and digits: 190 bits, and nothing that a shell, a URL or pgpass would have to quote.
fn random_password() -> Secret {
    Secret::new(rand::rng().sample_iter(Alphanumeric).take(32).map(char::from).collect::<String>())
}

/// A new file for our eyes only.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<()> {
    let open = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let written = open.and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("write {}", path.display()))
}

fn data_root(options: &LabOptions) -> Result<PathBuf> {
    let candidates = match &options.data_root {
        Some(root) => vec![std::path::absolute(root)?],
        None => vec![PathBuf::from("/var/tmp"), std::env::temp_dir(), PathBuf::from("/tmp")],
    };
    let account = account::unprivileged();
    let fits =
        |root: &&PathBuf| root.is_dir() && account.as_ref().is_none_or(|account| account.can_enter(root));
    match candidates.iter().find(fits) {
        Some(root) => Ok(root.clone()),
        None => bail!(no_data_root(&candidates[0], account.as_ref())),
    }
}

fn no_data_root(root: &Path, account: Option<&account::Account>) -> Failure {
    let who = account.map_or_else(String::new, |account| format!(" for {}", account.name));
    Failure::environment(format!("the lab's data cannot go into {}: no access{who}", root.display()))
        .hint("choose a folder that exists, and that this account may enter")
}

/// Enterable by PostgreSQL's account, readable by us alone.
fn new_lab_folder(root: &Path) -> Result<TempDir> {
    let folder = tempfile::Builder::new().prefix(FOLDER_PREFIX).tempdir_in(root);
    let folder = folder.with_context(|| format!("create the lab's folder in {}", root.display()))?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).context("open the lab's folder")?;
    Ok(folder)
}

/// Whether `folder` looks like one that [`new_lab_folder`] has made: what is removed is checked.
fn is_lab_folder(folder: &Path) -> bool {
    let named = folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(FOLDER_PREFIX));
    named && fs::symlink_metadata(folder).is_ok_and(|meta| meta.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_long_and_differ() {
        let (a, b) = (random_password(), random_password());
        assert_ne!(a.expose(), b.expose());
        assert_eq!(a.expose().len(), 32);
    }

    /// So that it may be spawned.
    #[test]
    fn starting_and_stopping_are_send() {
        fn start_and_stop() -> impl Future + Send {
            async { Lab::start(&LabOptions::default()).await?.stop().await }
        }
        fn restart(mut lab: Lab) -> impl Future + Send {
            async move {
                lab.postgres().kill9().await?;
                lab.clickhouse().start().await
            }
        }
        let _ = (start_and_stop, restart);
    }

    #[test]
    fn a_generated_name_is_valid() {
        state::check_name(&generated_name()).unwrap();
    }

    #[test]
    fn private_files_are_private_and_never_replace_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        write_private(&path, "x").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(write_private(&path, "y").is_err());
    }
}
