//! One file per subcommand; what they share: parsing, tracing, signals, and how an error is told.

pub mod check;
pub mod lab;
pub mod pipe;
pub mod report;
pub mod run;
pub mod verify;

use std::{
    collections::BTreeMap,
    io::{IsTerminal, Write},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{Pipeline, SourceEndpoint, TargetEndpoint, load},
    failure::{Failure, Kind},
};

const EXIT_CODES: &str = "\
Exit codes:
  0    ok
  1    an expectation of the pipeline file did not hold
  2    the command line or a file is wrong
  3    a server, a right or a binary is missing or refuses
  4    a fault of cdcprobe itself
  5    the source cannot go on: slot lost, made anew, advanced, of another server
  6    rows lost, doubled or differing
  7    inconclusive: an interval straddles a threshold
  130  interrupted; partial results are written";

/// How fast a Postgres-to-ClickHouse pipe really is: a pipe and a measuring instrument in one.
#[derive(Debug, Parser)]
#[command(name = "cdcprobe", version, after_long_help = EXIT_CODES, max_term_width = 100)]
struct Cli {
    /// Print results and errors as JSON on standard output.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say what a pipeline file would do, and everything that hinders it; changes nothing.
    Check(check::CheckArgs),
    /// Run a pipeline file's probes: servers, load, pipe, measurements, comparison, report.
    Run(run::RunArgs),
    /// Real PostgreSQL and ClickHouse servers on this machine, without docker.
    Lab(lab::LabArgs),
    #[command(name = crate::lab::clickhouse::ENGINE_SUBCOMMAND, hide = true)]
    ClickHouseEngine(lab::EngineArgs),
    /// Run a pipeline file's pipe until it is stopped: initial load, then changes as they come.
    Pipe(pipe::PipeArgs),
    /// Make a run directory's report anew from its files, and print its results.
    Report(report::ReportArgs),
    /// Compare source and target, every row and every column.
    Verify(verify::VerifyArgs),
}

/// A pipeline file and what overrides it.
#[derive(Debug, Args)]
pub struct PipelineArgs {
    /// The pipeline file (TOML); those that come with cdcprobe are in pipelines/.
    pub pipeline: PathBuf,
    /// Override a key of the file: --set batch.max_rows=50000. Repeatable; wins over CDCPROBE_<SECTION>_<KEY>.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
}

impl PipelineArgs {
    pub fn load(&self) -> anyhow::Result<Pipeline> {
        let env: BTreeMap<String, String> = std::env::vars().collect();
        load::load(&self.pipeline, &self.sets, &env)
    }
}

/// The servers of a pipeline that starts no lab of its own.
pub fn own_servers(
    pipeline: &Pipeline,
    command: &str,
) -> anyhow::Result<(SourceEndpoint, Option<TargetEndpoint>)> {
    let source = pipeline.source.clone().ok_or_else(|| {
        Failure::config(format!("`cdcprobe {command}` needs servers that are running"))
            .hint("give --set source.url=… --set target.url=…, or start a lab: eval \"$(cdcprobe lab env)\"")
    })?;
    Ok((source, pipeline.target.clone()))
}

/// Everything but the process's start.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    start_tracing();
    let json = cli.json;
    let done = match cli.command {
        // The engine brings threads of its own: no runtime beside it.
        Command::ClickHouseEngine(args) => lab::run_clickhouse_engine(&args),
        command => block_on(dispatch(command, json)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => tell(&error, json),
    }
}

fn block_on(command: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("build the runtime")?;
    let result = runtime.block_on(command);
    // A task that is stuck in a system call must not hold up the exit.
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    result
}

async fn dispatch(command: Command, json: bool) -> anyhow::Result<()> {
    match command {
        Command::Check(args) => check::run(args, json).await,
        Command::Run(args) => run::run(args, json).await,
        Command::Lab(args) => lab::run(args, json).await,
        Command::Pipe(args) => pipe::run(args, json).await,
        Command::Report(args) => report::run(&args, json),
        Command::Verify(args) => verify::run(args, json).await,
        Command::ClickHouseEngine(_) => unreachable!("it was started without a runtime"),
    }
}

/// `CDCPROBE_LOG` takes tracing's filters; warnings by default.
fn start_tracing() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("CDCPROBE_LOG");
    tracing_subscriber::fmt()
        .with_env_filter(filter.unwrap_or_else(|_| "warn".into()))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
        .init();
}

/// The context of an error whose details stand on standard output already.
#[derive(Debug, thiserror::Error)]
#[error("the check failed")]
pub struct Told;

/// Prints an error with its causes and its hint; its exit code.
fn tell(error: &anyhow::Error, json: bool) -> ExitCode {
    if is_broken_pipe(error) {
        return ExitCode::SUCCESS;
    }
    let failure = Failure::find(error);
    let kind = failure.map_or(Kind::Internal, |failure| failure.kind);
    let hint = failure.and_then(|failure| failure.hint.as_deref());
    // These come behind results that were printed already: one document is enough.
    let told = matches!(kind, Kind::Expectation | Kind::Invariant | Kind::Inconclusive)
        || error.downcast_ref::<Told>().is_some();
    if json && !told {
        let text = serde_json::json!({"error": {
            "kind": kind.to_string(), "exit_code": kind.code(), "message": format!("{error:#}"), "hint": hint,
        }});
        let _ = writeln!(std::io::stdout(), "{text}");
    }
    // Whoever started us may not be reading any more: the exit code still tells.
    let _ = writeln!(std::io::stderr(), "error ({kind}): {error:#}");
    if let Some(hint) = hint {
        let _ = writeln!(std::io::stderr(), "hint: {hint}");
    }
    ExitCode::from(kind.code())
}

/// Whoever reads our output had enough: that is success.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let broken = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
    };
    Failure::find(error).is_none() && error.chain().any(broken) && error.to_string().contains("print")
}

/// Cancelled by the first SIGINT or SIGTERM; a second one ends the process at once.
pub fn stop_on_signals() -> anyhow::Result<CancellationToken> {
    use tokio::signal::unix::{SignalKind, signal};
    let token = CancellationToken::new();
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let stop = token.clone();
    tokio::spawn(async move {
        for again in [false, true] {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if again {
                std::process::exit(i32::from(Kind::Interrupted.code()));
            }
            stop.cancel();
        }
    });
    Ok(token)
}
