//! The one way to start, signal, wait for and clean up a child process.
//!
//! A [`Spawn`] says what to run; [`Spawn::start`] gives a [`Child`], which is stopped when it is dropped. Every child
//! has its own folder as working directory, an environment of an allow-list only, one log file for both outputs, a
//! process group of its own (Ctrl-C at a terminal is ours to handle) and dies with us.
//!
//! Hazards:
//! - `PR_SET_PDEATHSIG` fires when the *thread* that forked ends, not the process. So one thread, which lives as
//!   long as the process, does all the forking.
//! - Changing the user clears it: it is set after the step down, just before exec; std runs `pre_exec` after setuid.
//! - We could die before it is set: the child compares its parent's pid and leaves at once if it is another one.
//! - A pid may be reused once its process is reaped; signals go through a pidfd, which cannot hit another process.
//! - PostgreSQL's backends start sessions of their own, so a signal to the process group misses them: see
//!   [`Child::kill_tree`].

use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom},
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::{CommandExt, ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::{LazyLock, mpsc},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid},
};
use tokio::io::{Interest, unix::AsyncFd};

use super::{account::Account, usage};

pub use rustix::process::Signal;

/// Variables that a child gets from our environment; all others are cleared.
const PASSED_ON: [&str; 4] = ["PATH", "TZ", "LD_LIBRARY_PATH", "RUST_BACKTRACE"];
const LOG_TAIL_BYTES: u64 = 16 << 10;
const LOG_TAIL_LINES: usize = 12;

/// What to run, and how.
#[derive(Clone, Debug)]
pub struct Spawn {
    /// For messages: `postgres`.
    pub name: String,
    pub program: PathBuf,
    pub args: Vec<OsString>,
    /// Working directory, HOME and TMPDIR.
    pub folder: PathBuf,
    /// Both outputs are appended here.
    pub log: PathBuf,
    /// Our whole environment instead of the allow-list, HOME included.
    pub inherit: bool,
    /// On top of the allow-list.
    pub env: Vec<(String, String)>,
    /// `None`: as ourselves.
    pub account: Option<Account>,
    /// What the kernel sends to the child when we die.
    pub death_signal: Signal,
    /// What [`Child`]'s drop sends first.
    pub drop_signal: Signal,
}

impl Spawn {
    pub fn new(name: &str, program: &Path, folder: &Path) -> Spawn {
        Spawn {
            name: name.to_owned(),
            program: program.to_owned(),
            args: Vec::new(),
            folder: folder.to_owned(),
            log: folder.join(format!("{name}.log")),
            inherit: false,
            env: Vec::new(),
            account: None,
            death_signal: Signal::KILL,
            drop_signal: Signal::KILL,
        }
    }

    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Spawn {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    pub fn log(mut self, log: &Path) -> Spawn {
        self.log = log.to_owned();
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Spawn {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// For the user's own tools (pip, npm), whose settings live in variables and in HOME. Not for servers.
    pub fn inherit_environment(mut self) -> Spawn {
        self.inherit = true;
        self
    }

    pub fn account(mut self, account: Option<Account>) -> Spawn {
        self.account = account;
        self
    }

    /// For servers that want to tidy up (shared memory) when we die or drop them.
    pub fn last_signal(mut self, signal: Signal) -> Spawn {
        self.death_signal = signal;
        self.drop_signal = signal;
        self
    }

    /// Errors: the program is missing or may not be executed, the folder or log cannot be used.
    pub fn start(&self) -> Result<Child> {
        let command = self.command()?;
        let child =
            fork(command).with_context(|| format!("start {} ({})", self.name, self.program.display()))?;
        let pid = Pid::from_child(&child);
        let pidfd =
            pidfd_open(pid, PidfdFlags::empty()).with_context(|| format!("open a pidfd of {}", self.name))?;
        Ok(Child {
            name: self.name.clone(),
            log: self.log.clone(),
            drop_signal: self.drop_signal,
            child,
            pidfd,
            status: None,
        })
    }

    /// Run a short-lived program to its end. Error: it cannot be started, fails (its last log lines in the message),
    /// or takes longer than `patience`; then it is killed.
    pub async fn run(&self, patience: Duration) -> Result<()> {
        let mut child = self.start()?;
        let Ok(status) = tokio::time::timeout(patience, child.wait()).await else {
            bail!("{} does not finish within {} s{}", self.name, patience.as_secs(), child.log_tail());
        };
        let status = status?;
        if !status.success() {
            bail!("{} fails ({status}){}", self.name, child.log_tail());
        }
        Ok(())
    }

    fn command(&self) -> Result<Command> {
        let log = open_log(&self.log)?;
        let mut command = Command::new(&self.program);
        if !self.inherit {
            let passed_on = PASSED_ON.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
            command.env_clear().envs(passed_on);
            command.env("LC_ALL", "C").env("HOME", &self.folder).env("TMPDIR", &self.folder);
        }
        command
            .args(&self.args)
            .current_dir(&self.folder)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("duplicate a log's descriptor")?)
            .stderr(log)
            .process_group(0);
        if let Some(account) = &self.account {
            command.uid(account.uid).gid(account.gid);
        }
        die_with_us(&mut command, self.death_signal);
        Ok(command)
    }
}

fn open_log(path: &Path) -> Result<File> {
    let open = OpenOptions::new().create(true).append(true).open(path);
    open.with_context(|| format!("open the log {}", path.display()))
}

fn die_with_us(command: &mut Command, signal: Signal) {
    let parent = rustix::process::getpid();
    let arm = move || {
        rustix::process::set_parent_process_death_signal(Some(signal))?;
        if rustix::process::getppid() != Some(parent) {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe));
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes two system calls; it neither allocates nor takes a lock.
    unsafe { command.pre_exec(arm) };
}

type ForkRequest = (Command, mpsc::Sender<io::Result<std::process::Child>>);

/// Fork on the thread that lives as long as the process (see the hazards above).
fn fork(command: Command) -> io::Result<std::process::Child> {
    static FORKER: LazyLock<mpsc::Sender<ForkRequest>> = LazyLock::new(start_forker);
    let (reply, answer) = mpsc::channel();
    FORKER.send((command, reply)).map_err(|_| io::Error::other("the forking thread is gone"))?;
    answer.recv().map_err(|_| io::Error::other("the forking thread is gone"))?
}

fn start_forker() -> mpsc::Sender<ForkRequest> {
    let (sender, requests) = mpsc::channel::<ForkRequest>();
    let serve = move || {
        for (mut command, reply) in requests {
            let _ = reply.send(command.spawn());
        }
    };
    std::thread::Builder::new().name("forker".to_owned()).spawn(serve).expect("a thread can be started");
    sender
}

/// A running child process. Dropping it stops it.
#[derive(Debug)]
pub struct Child {
    name: String,
    log: PathBuf,
    drop_signal: Signal,
    child: std::process::Child,
    pidfd: OwnedFd,
    status: Option<ExitStatus>,
}

impl Child {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// How it ended; `None` while it runs.
    pub fn status(&mut self) -> Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.child.try_wait().with_context(|| format!("wait for {}", self.name))?;
        }
        Ok(self.status)
    }

    /// Error if it has ended, with its last log lines.
    pub fn expect_running(&mut self) -> Result<()> {
        match self.status()? {
            None => Ok(()),
            Some(status) => bail!("{} ended ({}){}", self.name, describe(status), self.log_tail()),
        }
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        match pidfd_send_signal(&self.pidfd, signal) {
            Err(rustix::io::Errno::SRCH) => Ok(()),
            other => other.with_context(|| format!("signal {}", self.name)),
        }
    }

    /// Until it ends. Cancel safe.
    pub async fn wait(&mut self) -> Result<ExitStatus> {
        loop {
            if let Some(status) = self.status()? {
                return Ok(status);
            }
            until_readable(&self.pidfd).await.with_context(|| format!("wait for {}", self.name))?;
        }
    }

    /// Until it ends, told as an error with its last log lines. Cancel safe.
    pub async fn ended(&mut self) -> anyhow::Error {
        match self.wait().await {
            Err(error) => error,
            Ok(_) => self.expect_running().err().unwrap_or_else(|| anyhow::anyhow!("{} ended", self.name)),
        }
    }

    /// Send each signal of `ladder` in turn until the child has ended, waiting for as long as it says after each;
    /// [`Child::kill_tree`] after the last.
    pub async fn stop(&mut self, ladder: &[(Signal, Duration)]) -> Result<()> {
        for &(signal, patience) in ladder {
            self.signal(signal)?;
            if let Ok(ended) = tokio::time::timeout(patience, self.wait()).await {
                return ended.map(drop);
            }
        }
        self.kill_tree().await
    }

    /// SIGKILL, as sudden as a power cut: the child and all its descendants at once. Returns when they are gone.
    pub async fn kill_tree(&mut self) -> Result<()> {
        let descendants = self.signal_tree()?;
        self.wait().await?;
        for pidfd in &descendants {
            until_readable(pidfd).await.context("wait for a descendant")?;
        }
        Ok(())
    }

    /// SIGKILL to the child and its descendants; gives the descendants. The child is stopped while they are listed,
    /// so that it cannot start another one meanwhile.
    fn signal_tree(&self) -> Result<Vec<OwnedFd>> {
        self.signal(Signal::STOP)?;
        let stopped_or_ended = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        // An error: it has been waited for already.
        let _ = waitid(WaitId::PidFd(self.pidfd.as_fd()), stopped_or_ended);
        let descendants = descendants(self.pid());
        self.signal(Signal::KILL)?;
        for pidfd in &descendants {
            let _ = pidfd_send_signal(pidfd, Signal::KILL);
        }
        Ok(descendants)
    }

    /// The last lines of its log, as [`log_tail`] gives them.
    pub fn log_tail(&self) -> String {
        log_tail(&self.log)
    }

    fn wait_blocking(&mut self, patience: Duration) -> bool {
        ends_within(&self.pidfd, patience) && matches!(self.status(), Ok(Some(_)))
    }
}

/// Waits for the end of all of it: a folder is about to be removed, and nothing may write into it any more.
impl Drop for Child {
    fn drop(&mut self) {
        let patience = Duration::from_secs(5);
        if matches!(self.status(), Ok(Some(_))) {
            return;
        }
        if self.drop_signal != Signal::KILL {
            let _ = self.signal(self.drop_signal);
            if self.wait_blocking(patience) {
                return;
            }
        }
        let descendants = self.signal_tree().unwrap_or_default();
        self.wait_blocking(patience);
        for pidfd in &descendants {
            ends_within(pidfd, patience);
        }
    }
}

/// A pidfd is readable once its process has ended.
async fn until_readable(pidfd: &OwnedFd) -> io::Result<()> {
    // SAFETY: an OwnedFd always names the same open descriptor, and closes it itself.
    let watched = unsafe { AsyncFd::register_with_interest(pidfd.try_clone()?, Interest::READABLE) }?;
    watched.readable().await.map(|mut guard| guard.clear_ready())
}

/// Pidfds of everything below `pid`. Processes that end meanwhile are left out.
fn descendants(pid: u32) -> Vec<OwnedFd> {
    let mut found = Vec::new();
    let mut parents = vec![pid];
    while let Some(parent) = parents.pop() {
        for child in usage::children(parent).unwrap_or_default() {
            let pidfd = Pid::from_raw(child as i32).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
            found.extend(pidfd);
            parents.push(child);
        }
    }
    found
}

/// SIGKILL `pid` if it is still the process that started at `start_ticks`, and wait until it is gone, 5 s at most.
/// For what another process of ours left behind.
pub fn kill_leftover(pid: u32, start_ticks: u64) {
    let _ = signal_and_wait(pid, start_ticks, Signal::KILL, Duration::from_secs(5));
}

/// SIGTERM to a process that is not our child, if it is still the one that started at `start_ticks`. Blocks until it
/// has ended; false: it has not within `patience`. Error: we may not signal it.
pub fn terminate(pid: u32, start_ticks: u64, patience: Duration) -> Result<bool> {
    signal_and_wait(pid, start_ticks, Signal::TERM, patience).with_context(|| format!("stop process {pid}"))
}

fn signal_and_wait(pid: u32, start_ticks: u64, signal: Signal, patience: Duration) -> io::Result<bool> {
    let Some(Ok(pidfd)) = Pid::from_raw(pid as i32).map(|pid| pidfd_open(pid, PidfdFlags::empty())) else {
        return Ok(true);
    };
    // Checked with the pidfd open: from here on it names this process and no later one.
    if usage::start_ticks(pid) != Some(start_ticks) {
        return Ok(true);
    }
    match pidfd_send_signal(&pidfd, signal) {
        Err(rustix::io::Errno::SRCH) => Ok(true),
        Err(error) => Err(error.into()),
        Ok(()) => Ok(ends_within(&pidfd, patience)),
    }
}

/// Blocks until the process of `pidfd` has ended; false: it has not within `patience`.
fn ends_within(pidfd: &OwnedFd, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) if left.is_zero() => return false,
            Ok(1..) => return true,
            _ => {}
        }
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

/// The last lines of a log, for an error message: begins with `; `, or is empty if there is nothing to tell.
pub fn log_tail(log: &Path) -> String {
    match read_tail(log) {
        Ok(tail) if !tail.is_empty() => format!("; the end of its log:\n{tail}"),
        _ => String::new(),
    }
}

fn read_tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(LOG_TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(last_lines(&String::from_utf8_lossy(&bytes), LOG_TAIL_LINES))
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(folder: &Path, script: &str) -> Spawn {
        Spawn::new("shell", Path::new("/bin/sh"), folder).args(["-c", script])
    }

    #[tokio::test]
    async fn a_failing_program_shows_its_last_log_lines() {
        let folder = tempfile::tempdir().unwrap();
        let error = shell(folder.path(), "echo deep trouble >&2; exit 3").run(Duration::from_secs(20)).await;
        let message = error.unwrap_err().to_string();
        assert!(message.contains("shell fails") && message.contains("deep trouble"), "{message}");
    }

    #[tokio::test]
    async fn a_program_that_hangs_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let began = Instant::now();
        let error = shell(folder.path(), "sleep 60").run(Duration::from_millis(100)).await;
        assert!(error.unwrap_err().to_string().contains("does not finish"));
        assert!(began.elapsed() < Duration::from_secs(30));
    }

    #[tokio::test]
    async fn the_environment_is_an_allow_list() {
        let folder = tempfile::tempdir().unwrap();
        let script = "env | cut -d= -f1 | sort > names";
        shell(folder.path(), script).env("EXTRA", "1").run(Duration::from_secs(20)).await.unwrap();
        let names = std::fs::read_to_string(folder.path().join("names")).unwrap();
        assert!(names.contains("EXTRA") && names.contains("HOME"));
        assert!(!names.contains("CARGO"), "cargo's variables must not reach a child: {names}");
    }

    #[tokio::test]
    async fn a_stubborn_child_is_killed_after_the_ladder() {
        let folder = tempfile::tempdir().unwrap();
        let script = "trap '' TERM; echo up > ready; while :; do sleep 1; done";
        let mut child = shell(folder.path(), script).start().unwrap();
        while !folder.path().join("ready").exists() {
            child.expect_running().unwrap();
            tokio::task::yield_now().await;
        }
        child.stop(&[(Signal::TERM, Duration::from_millis(200))]).await.unwrap();
        assert_eq!(child.status().unwrap().unwrap().signal(), Some(9));
        assert!(child.expect_running().unwrap_err().to_string().contains("killed by signal 9"));
    }

    /// A child that has a child of its own, in another session; and that one's pid.
    fn parent(folder: &Path) -> (Child, u32) {
        let mut child = shell(folder, "setsid sleep 300 & echo $! > pid; wait").start().unwrap();
        loop {
            child.expect_running().unwrap();
            match std::fs::read_to_string(folder.join("pid")).unwrap_or_default().trim().parse() {
                Ok(grandchild) => return (child, grandchild),
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    #[tokio::test]
    async fn kill_tree_takes_grandchildren_in_sessions_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let (mut child, grandchild) = parent(folder.path());
        child.kill_tree().await.unwrap();
        assert_eq!(usage::start_ticks(grandchild), None);
    }

    /// As a cancelled initdb, whose own children would still write into its folder.
    #[test]
    fn a_dropped_child_takes_its_children_along() {
        let folder = tempfile::tempdir().unwrap();
        let (child, grandchild) = parent(folder.path());
        drop(child);
        assert_eq!(usage::start_ticks(grandchild), None);
    }

    #[test]
    fn a_child_outlives_the_thread_that_asked_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let spawn = shell(folder.path(), "sleep 300");
        let mut child = std::thread::spawn(move || spawn.start().unwrap()).join().unwrap();
        assert!(!child.wait_blocking(Duration::from_millis(300)), "it died with the asking thread");
    }

    #[test]
    fn the_tail_of_a_log_skips_blank_lines() {
        assert_eq!(last_lines("a\n\nb\n \nc\n", 2), "b\nc");
        assert_eq!(last_lines("", 2), "");
    }
}
