//! `cdcprobe run`: a pipeline file's probes, from servers to report.

use std::{collections::BTreeMap, io::Write, path::PathBuf, sync::Arc};

use anyhow::Context;
use clap::Args;
use tokio_util::sync::CancellationToken;

use super::{PipelineArgs, stop_on_signals};
use crate::{
    analyze::run::{Expectations, outcome},
    config::{LabPlan, Pipeline, Probe, SinkKind, SourceEndpoint, TargetEndpoint, endpoint::Host},
    failure::{Failure, Kind},
    lab::{Lab, LabOptions, install::Choice},
    probe::{self, Bench, bench::interrupted, evidence},
    record::{Manifest, Outcome, RunDir, Status, live::Watcher},
    report,
};

#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub file: PipelineArgs,
    /// Where the run directory is made.
    #[arg(long, value_name = "DIR", default_value = "runs")]
    pub runs: PathBuf,
    /// Leave tables, slots and publications of the probes on the servers.
    #[arg(long)]
    pub keep: bool,
}

pub async fn run(args: RunArgs, json: bool) -> anyhow::Result<()> {
    let pipeline = args.file.load()?;
    refuse_without_work(&pipeline)?;
    let stop = stop_on_signals()?;
    let watcher = report::live::watcher();
    let servers = tokio::select! {
        biased;
        () = stop.cancelled() => return Err(interrupted().into()),
        servers = Servers::start(&pipeline, watcher.as_ref()) => servers?,
    };
    let result = measure(&args, &pipeline, &servers, &stop, watcher).await;
    servers.stop().await?;
    let (dir, outcome) = result?;
    report::print(&RunDir::open(dir.path())?, json)?;
    tell_folder(&dir);
    match outcome.exit.failure() {
        None => Ok(()),
        Some(kind) => Err(Failure::new(kind, outcome.verdict).into()),
    }
}

fn refuse_without_work(pipeline: &Pipeline) -> anyhow::Result<()> {
    if pipeline.probes.is_empty() {
        return Err(Failure::config("the pipeline file has no [[probe]]")
            .hint("`cdcprobe pipe` runs the pipe alone")
            .into());
    }
    if pipeline.sink == SinkKind::Null {
        return Err(Failure::config("target.kind = \"null\" leaves a probe nothing to compare with")
            .hint("a drain measures its null sink by itself: decode_only = true")
            .into());
    }
    Ok(())
}

/// The servers of a run: a lab of its own, or the user's.
struct Servers {
    lab: Option<Lab>,
    source: SourceEndpoint,
    target: TargetEndpoint,
    clickhouse_pid: Option<u32>,
}

impl Servers {
    async fn start(pipeline: &Pipeline, watcher: &dyn Watcher) -> anyhow::Result<Servers> {
        if let (Some(source), Some(target)) = (&pipeline.source, &pipeline.target) {
            return Ok(Servers {
                lab: None,
                source: source.clone(),
                target: target.clone(),
                clickhouse_pid: None,
            });
        }
        let plan = pipeline.lab.as_ref().ok_or_else(|| {
            Failure::config("the pipeline file names no servers")
                .hint("add [lab], or give source.url and target.url")
        })?;
        watcher.phase("start the lab");
        let lab = Lab::start(&lab_options(plan)).await.context("start the lab")?;
        let target = TargetEndpoint {
            database: pipeline.database.clone(),
            compression: pipeline.compression,
            timeout: pipeline.timeout,
            views: pipeline.views,
            ..lab.target_endpoint()
        };
        Ok(Servers {
            source: lab.source_endpoint(),
            target,
            clickhouse_pid: lab.clickhouse_pid(),
            lab: Some(lab),
        })
    }

    fn source_is_local(&self) -> bool {
        self.source.hosts.iter().all(|host| match host {
            Host::Unix { .. } => true,
            Host::Tcp { host, .. } => {
                host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
            }
        })
    }

    async fn stop(self) -> anyhow::Result<()> {
        match self.lab {
            Some(lab) => lab.stop().await,
            None => Ok(()),
        }
    }
}

fn lab_options(plan: &LabPlan) -> LabOptions {
    let binaries = Choice { pg_bin: plan.pg_bin.clone(), clickhouse: plan.clickhouse.clone(), cache: None };
    LabOptions { binaries, ..LabOptions::default() }
}

/// Runs all probes into a new run directory; the outcome is written however far it came.
async fn measure(
    args: &RunArgs,
    pipeline: &Pipeline,
    servers: &Servers,
    stop: &CancellationToken,
    watcher: Arc<dyn Watcher>,
) -> anyhow::Result<(RunDir, Outcome)> {
    let topology = pipeline.lab.as_ref().map_or("own servers", |lab| lab.topology.as_str());
    let manifest = Manifest::new(&pipeline.name, &pipeline.description, topology, pipeline.resolved.clone());
    let dir = RunDir::create(&args.runs, manifest)?;
    let clock = evidence::record(&dir, &servers.source, &servers.target).await;
    let done = match clock {
        Ok(clock) => {
            let bench = Bench {
                pipeline: pipeline.clone(),
                source: servers.source.clone(),
                target: servers.target.clone(),
                clickhouse_pid: servers.clickhouse_pid,
                source_is_local: servers.source_is_local(),
                source_offset_us: clock.offset_us,
                dir: dir.clone(),
                watcher,
                stop: stop.clone(),
                keep: args.keep,
            };
            run_probes(&bench, &pipeline.probes).await
        }
        Err(error) => Err(error),
    };
    finish(&dir, pipeline, done)
}

async fn run_probes(bench: &Bench, probes: &[Probe]) -> anyhow::Result<()> {
    for probe in probes {
        bench.check_stop()?;
        probe::run(bench, probe).await.with_context(|| format!("probe {}", probe.name()))?;
    }
    Ok(())
}

/// Derives and writes what there is; an error of the probes stays the error.
fn finish(dir: &RunDir, pipeline: &Pipeline, done: anyhow::Result<()>) -> anyhow::Result<(RunDir, Outcome)> {
    let (status, error) = match &done {
        Ok(()) => (Status::Finished, None),
        Err(error) if Failure::find(error).is_some_and(|failure| failure.kind == Kind::Interrupted) => {
            (Status::Interrupted, Some(format!("{error:#}")))
        }
        Err(error) => (Status::Failed, Some(format!("{error:#}"))),
    };
    dir.finish(status, error)?;
    let outcome = outcome(&RunDir::open(dir.path())?, &expectations(&pipeline.probes));
    dir.write_outcome(&outcome)?;
    report::write(dir.path())?;
    if done.is_err() {
        tell_folder(dir);
    }
    done.map(|()| (dir.clone(), outcome))
}

fn tell_folder(dir: &RunDir) {
    // Nobody reading standard error any more is no reason to fail.
    let _ = writeln!(std::io::stderr(), "run directory: {}", dir.path().display());
}

fn expectations(probes: &[Probe]) -> Expectations {
    let mut all: Expectations = BTreeMap::new();
    for probe in probes {
        all.entry(probe.name().to_owned()).or_default().extend(probe.expect.clone());
    }
    all
}
