//! `cdcprobe lab`: real servers on this machine, for a while.
//!
//! `up` owns its lab: the servers live as long as that process, in the foreground until Ctrl-C, or detached. The other
//! subcommands find it by its state file.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::OpenOptions,
    io::{BufRead, BufReader, Write},
    os::unix::{fs::OpenOptionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{ChildStdout, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Subcommand};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    failure::Failure,
    host::process,
    lab::{
        Lab, LabOptions, clickhouse, generated_name,
        install::{self, Choice},
        progress::Progress,
        state::{self, LabState},
    },
};

const DOWN_PATIENCE: Duration = Duration::from_secs(60);

/// Real PostgreSQL and ClickHouse servers on this machine, without docker
#[derive(Debug, Args)]
pub struct LabArgs {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    /// Fetch the servers' binaries into the cache, if they are neither given nor on PATH
    Install(BinaryArgs),
    /// Start a lab and keep it until Ctrl-C, SIGTERM or `lab down`
    Up(UpArgs),
    /// List the running labs
    Status,
    /// Print shell exports that point psql, clickhouse-client and cdcprobe at a lab: eval "$(cdcprobe lab env)"
    Env(NameArgs),
    /// Stop a lab
    Down(NameArgs),
}

#[derive(Clone, Debug, Args)]
struct BinaryArgs {
    /// Folder with postgres, initdb, … [default: PATH if version 18 or later, then the cache]
    #[arg(long, value_name = "DIR")]
    pg_bin: Option<PathBuf>,
    /// A clickhouse binary, or libchdb.so [default: PATH, then the cache]
    #[arg(long, value_name = "BIN")]
    clickhouse: Option<PathBuf>,
}

impl BinaryArgs {
    fn choice(&self) -> Choice {
        Choice { pg_bin: self.pg_bin.clone(), clickhouse: self.clickhouse.clone(), cache: None }
    }
}

#[derive(Clone, Debug, Args)]
struct UpArgs {
    /// Name by which other commands find the lab [default: generated]
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    binaries: BinaryArgs,
    /// A PostgreSQL setting, may be repeated
    #[arg(long = "pg-set", value_name = "NAME=VALUE", value_parser = parse_setting)]
    pg_settings: Vec<(String, String)>,
    /// Folder to make the lab's data folder in [default: /var/tmp]
    #[arg(long, value_name = "DIR")]
    data_root: Option<PathBuf>,
    /// Leave the data folder behind
    #[arg(long)]
    keep: bool,
    /// Return when the lab is ready; it runs on in the background
    #[arg(long)]
    detach: bool,
}

#[derive(Debug, Args)]
struct NameArgs {
    /// Which lab [default: the only one]
    #[arg(long)]
    name: Option<String>,
}

fn parse_setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE is wanted")?;
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    if name.is_empty() || !name.chars().all(plain) || value.contains('\n') {
        return Err("NAME=VALUE is wanted".to_owned());
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// Hosts the ClickHouse engine. Not for users: the lab starts it.
#[derive(Debug, Args)]
pub struct EngineArgs {
    #[arg(long)]
    lib: PathBuf,
    #[arg(last = true)]
    arguments: Vec<OsString>,
}

/// Blocks for as long as the engine serves. Needs no runtime.
pub fn run_clickhouse_engine(args: &EngineArgs) -> Result<()> {
    clickhouse::run_engine(&args.lib, &args.arguments)
}

/// Data on stdout, progress on stderr.
pub async fn run(args: LabArgs, json: bool) -> Result<()> {
    match args.command {
        LabCommand::Install(args) => install(&args, json).await,
        LabCommand::Up(args) if args.detach => up_detached(args, json).await,
        LabCommand::Up(args) => up(args, json).await,
        LabCommand::Status => status(json),
        LabCommand::Env(args) => env(args.name.as_deref(), json),
        LabCommand::Down(args) => down(args.name.as_deref(), json).await,
    }
}

async fn install(args: &BinaryArgs, json: bool) -> Result<()> {
    let binaries = install::resolve(&args.choice(), &Progress::stderr()).await?;
    let (postgres, clickhouse) = (&binaries.postgres.bin, binaries.clickhouse.path());
    match json {
        true => print(&json!({ "pg_bin": postgres, "clickhouse": clickhouse }).to_string()),
        false => print(&format!("postgres    {}\nclickhouse  {}", postgres.display(), clickhouse.display())),
    }
}

async fn up(args: UpArgs, json: bool) -> Result<()> {
    // Listening before anything is started, so that an early Ctrl-C unwinds what has been started.
    let mut interrupt = Interrupt::listen()?;
    let options = LabOptions {
        name: args.name,
        binaries: args.binaries.choice(),
        postgres_settings: args.pg_settings,
        data_root: args.data_root,
        keep: args.keep,
        ..LabOptions::default()
    };
    let started = tokio::select! {
        started = Lab::start(&options) => started?,
        () = interrupt.received() => bail!(Failure::new(crate::failure::Kind::Interrupted, "interrupted")),
    };
    serve(started, &mut interrupt, json).await
}

/// Until a signal, or until a server ends by itself, which is an error.
async fn serve(mut lab: Lab, interrupt: &mut Interrupt, json: bool) -> Result<()> {
    match json {
        true => print(&serde_json::to_string(lab.state())?)?,
        false => print(&describe(lab.state()))?,
    }
    let ended = tokio::select! {
        ended = lab.until_one_ends() => Some(ended),
        () = interrupt.received() => None,
    };
    lab.stop().await?;
    ended.map_or(Ok(()), |error| {
        Err(error.context(Failure::environment("a server of the lab ended by itself")))
    })
}

/// SIGINT, SIGTERM or SIGHUP.
struct Interrupt([tokio::signal::unix::Signal; 3]);

impl Interrupt {
    fn listen() -> Result<Interrupt> {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [a, b, c] = kinds.map(signal);
        Ok(Interrupt([a?, b?, c?]))
    }

    async fn received(&mut self) {
        let [a, b, c] = &mut self.0;
        tokio::select! { _ = a.recv() => {}, _ = b.recv() => {}, _ = c.recv() => {} }
    }
}

/// Start ourselves again as the leader of a session of its own, and wait for the line that says the lab is ready.
async fn up_detached(mut args: UpArgs, json: bool) -> Result<()> {
    // Here, where its progress is seen.
    install::resolve(&args.binaries.choice(), &Progress::stderr()).await?;
    let name = args.name.take().unwrap_or_else(generated_name);
    let folder = state::default_folder()?;
    state::check_free(&folder, &name)?;
    let log = state::background_log(&folder, &name);
    args.name = Some(name);
    let ready = tokio::task::spawn_blocking(move || start_detached(&args, &log)).await??;
    let state: LabState = serde_json::from_str(&ready).context("read the detached lab's answer")?;
    match json {
        true => print(ready.trim()),
        false => print(&describe(&state)),
    }
}

fn start_detached(args: &UpArgs, log: &Path) -> Result<String> {
    state::prepare_folder(&state::default_folder()?)?;
    let log_file = OpenOptions::new().create(true).append(true).mode(0o600).open(log);
    let log_file = log_file.with_context(|| format!("open {}", log.display()))?;
    let mut command = Command::new(std::env::current_exe().context("find this program's own file")?);
    command.args(up_arguments(args)).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log_file);
    // SAFETY: setsid is one system call, fit for between fork and exec.
    unsafe { command.pre_exec(|| rustix::process::setsid().map(drop).map_err(Into::into)) };
    let mut child = command.spawn().context("start the lab in the background")?;
    let output = child.stdout.take().expect("stdout is piped");
    match first_line(output)? {
        Some(line) => Ok(line),
        None => {
            let status = child.wait().context("wait for the lab in the background")?;
            let said = process::log_tail(log);
            let _ = std::fs::remove_file(log);
            bail!(Failure::environment(format!("the lab in the background does not start ({status}){said}")))
        }
    }
}

fn first_line(output: ChildStdout) -> Result<Option<String>> {
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).context("read from the lab in the background")?;
    Ok((!line.is_empty()).then_some(line))
}

fn up_arguments(args: &UpArgs) -> Vec<OsString> {
    let mut words: Vec<OsString> = ["lab", "up", "--json"].map(OsString::from).into();
    let mut push = |name: &str, value: OsString| words.extend([OsString::from(name), value]);
    if let Some(name) = &args.name {
        push("--name", name.into());
    }
    for (name, path) in [
        ("--pg-bin", &args.binaries.pg_bin),
        ("--clickhouse", &args.binaries.clickhouse),
        ("--data-root", &args.data_root),
    ] {
        if let Some(path) = path {
            push(name, path.into());
        }
    }
    for (name, value) in &args.pg_settings {
        push("--pg-set", format!("{name}={value}").into());
    }
    if args.keep {
        words.push("--keep".into());
    }
    words
}

fn status(json: bool) -> Result<()> {
    let labs = state::list(&state::default_folder()?)?;
    if json {
        return print(&serde_json::to_string(&labs)?);
    }
    if labs.is_empty() {
        return print("no lab is running");
    }
    print(&labs.iter().map(describe).collect::<Vec<_>>().join("\n"))
}

fn env(name: Option<&str>, json: bool) -> Result<()> {
    let lab = state::find(&state::default_folder()?, name)?;
    let variables = variables(&lab)?;
    if json {
        return print(&serde_json::to_string(&variables)?);
    }
    let mut lines: Vec<String> =
        variables.iter().map(|(name, value)| format!("export {name}={}", shell_quoted(value))).collect();
    // clickhouse-client knows no password file; so the shell reads it, and it is not printed.
    lines.push("export CLICKHOUSE_PASSWORD=\"$(cat \"$CLICKHOUSE_PASSWORD_FILE\")\"".to_owned());
    print(&lines.join("\n"))
}

/// What `env` exports. No password among them, only the files that hold them.
fn variables(lab: &LabState) -> Result<BTreeMap<&'static str, String>> {
    let (Some(postgres), Some(clickhouse)) = (&lab.postgres, &lab.clickhouse) else {
        bail!(Failure::environment(format!("the lab {} is still starting", lab.name)).hint("try again"));
    };
    let source = format!(
        "postgres://{}@{}:{}/{}?sslmode=disable",
        postgres.user, postgres.host, postgres.port, postgres.database
    );
    let target = format!("http://{}@{}:{}", clickhouse.user, clickhouse.host, clickhouse.http_port);
    Ok(BTreeMap::from([
        ("PGHOST", postgres.host.clone()),
        ("PGPORT", postgres.port.to_string()),
        ("PGUSER", postgres.user.clone()),
        ("PGDATABASE", postgres.database.clone()),
        ("PGPASSFILE", postgres.passfile.display().to_string()),
        ("PGSSLMODE", "disable".to_owned()),
        ("CLICKHOUSE_HOST", clickhouse.host.clone()),
        ("CLICKHOUSE_PORT", clickhouse.tcp_port.to_string()),
        ("CLICKHOUSE_USER", clickhouse.user.clone()),
        ("CLICKHOUSE_DATABASE", clickhouse.database.clone()),
        ("CLICKHOUSE_PASSWORD_FILE", clickhouse.password_file.display().to_string()),
        ("CDCPROBE_SOURCE_URL", source),
        ("CDCPROBE_TARGET_URL", target),
    ]))
}

async fn down(name: Option<&str>, json: bool) -> Result<()> {
    let folder = state::default_folder()?;
    let lab = state::find(&folder, name)?;
    let owner = lab.owner;
    let stop = move || process::terminate(owner.pid, owner.start_ticks, DOWN_PATIENCE);
    if !tokio::task::spawn_blocking(stop).await?? {
        let message = format!("the lab {} (process {}) does not stop", lab.name, owner.pid);
        bail!(Failure::environment(message).hint("end that process; its servers end with it"));
    }
    // If its owner died instead of stopping, this cleans up.
    state::list(&folder)?;
    let _ = std::fs::remove_file(state::background_log(&folder, &lab.name));
    match json {
        true => print(&json!({ "stopped": lab.name }).to_string()),
        false => print(&format!("lab {} is down", lab.name)),
    }
}

fn describe(lab: &LabState) -> String {
    let mut lines = vec![format!("lab {} ({}), process {}", lab.name, lab.topology, lab.owner.pid)];
    if let Some(node) = &lab.postgres {
        lines.push(format!(
            "  postgres    postgres://{}@{}:{}/{}",
            node.user, node.host, node.port, node.database
        ));
        lines.push(format!("              socket {}", node.socket_folder.display()));
    }
    if let Some(node) = &lab.clickhouse {
        lines.push(format!("  clickhouse  {} (native port {}), user {}", node.url, node.tcp_port, node.user));
    }
    if !lab.is_ready() {
        lines.push("  still starting".to_owned());
    }
    lines.push(format!("  data        {}", lab.data_folder.display()));
    lines.push(format!("  variables   eval \"$(cdcprobe lab env --name {})\"", lab.name));
    lines.join("\n")
}

fn shell_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A reader that went away is no error.
fn print(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(anyhow!(error).context("write to stdout"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_name_and_value() {
        assert_eq!(parse_setting("wal_level=replica").unwrap(), ("wal_level".into(), "replica".into()));
        assert_eq!(parse_setting("a.b=c=d").unwrap(), ("a.b".into(), "c=d".into()));
        for wrong in ["wal_level", "=x", "a b=c", "a=b\nc='d'"] {
            assert!(parse_setting(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn shell_quoting_survives_a_quote() {
        assert_eq!(shell_quoted("it's $HOME"), r"'it'\''s $HOME'");
    }
}
