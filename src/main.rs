//! Temporary: only the lab's commands.

use clap::{Parser, Subcommand};

use cdcprobe::{
    cli::lab::{EngineArgs, LabArgs, run, run_clickhouse_engine},
    failure::{Failure, Kind},
};

#[derive(Parser)]
struct Cli {
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Lab(LabArgs),
    #[command(name = cdcprobe::lab::clickhouse::ENGINE_SUBCOMMAND, hide = true)]
    ClickHouseEngine(EngineArgs),
}

fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Command::ClickHouseEngine(args) => run_clickhouse_engine(&args),
        Command::Lab(args) => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
            runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(run(args, cli.json)))
        }
    };
    let Err(error) = done else { return std::process::ExitCode::SUCCESS };
    eprintln!("error: {error:#}");
    let failure = Failure::find(&error);
    if let Some(hint) = failure.and_then(|failure| failure.hint.as_ref()) {
        eprintln!("hint: {hint}");
    }
    std::process::ExitCode::from(failure.map_or(Kind::Internal, |failure| failure.kind).code())
}
