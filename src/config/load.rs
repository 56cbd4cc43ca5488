//! From a file's text, the environment and `--set` to a validated [`Pipeline`].

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Duration,
};

use super::{
    BackfillProbe, BatchLimits, Bounds, DrainProbe, LabPlan, LoadPlan, Pipeline, Probe, ProbeKind, SinkKind,
    SourceEndpoint, TableName, TargetEndpoint, Transactions, Workload,
    raw::{RawBatch, RawBounds, RawLoad, RawPipeline, RawProbe, RawTransactions},
};
use crate::{failure::Failure, units::ByteSize};

/// Sections that `CDCPROBE_<SECTION>_<KEY>` reaches.
const SECTIONS: [&str; 7] = ["lab", "source", "target", "snapshot", "batch", "transactions", "values"];

/// Reads a pipeline file. `sets` are `key=value` with dots (`probe.0.load.duration=5s`).
pub fn load(path: &Path, sets: &[String], env: &BTreeMap<String, String>) -> anyhow::Result<Pipeline> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::config(format!("cannot read {}: {error}", path.display()))
            .hint("pipeline files are TOML; the ones that come with cdcprobe are in pipelines/")
    })?;
    let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    parse(&name, &path.display().to_string(), &text, sets, env)
}

/// As [`load`], from text; `origin` names it in errors.
pub fn parse(
    name: &str,
    origin: &str,
    text: &str,
    sets: &[String],
    env: &BTreeMap<String, String>,
) -> anyhow::Result<Pipeline> {
    // The file alone first: its errors know their line.
    toml::from_str::<RawPipeline>(text).map_err(|error| file_failure(origin, &error))?;
    let mut table: toml::Table = toml::from_str(text).map_err(|error| file_failure(origin, &error))?;
    for (key, value) in env_overrides(env) {
        set(&mut table, &key, &value)?;
    }
    for assignment in sets {
        let (key, value) = assignment.split_once('=').ok_or_else(|| {
            Failure::config(format!("--set {assignment:?} has no `=`"))
                .hint("write it like --set batch.max_rows=50000")
        })?;
        set(&mut table, key.trim(), value.trim())?;
    }
    let raw: RawPipeline = table.try_into().map_err(|error: toml::de::Error| {
        Failure::config(format!("after --set and CDCPROBE_*: {}", error.message()))
            .hint("docs/pipelines.md lists every key")
    })?;
    resolve(name, raw, env)
}

fn file_failure(origin: &str, error: &toml::de::Error) -> Failure {
    Failure::config(format!("{origin}: {}", error.to_string().trim_end()))
        .hint("docs/pipelines.md lists every key")
}

/// `CDCPROBE_SOURCE_URL` becomes `source.url`, `CDCPROBE_BATCH_MAX_ROWS` becomes `batch.max_rows`.
fn env_overrides(env: &BTreeMap<String, String>) -> Vec<(String, String)> {
    let key = |name: &str| {
        let (section, key) = name.strip_prefix("CDCPROBE_")?.split_once('_')?;
        let section = section.to_ascii_lowercase();
        SECTIONS.contains(&section.as_str()).then(|| format!("{section}.{}", key.to_ascii_lowercase()))
    };
    env.iter().filter_map(|(name, value)| Some((key(name)?, value.clone()))).collect()
}

/// Sets `a.b.c`; numbers in the path are positions in arrays. The value is TOML where it reads as such, else a string.
fn set(table: &mut toml::Table, key: &str, value: &str) -> anyhow::Result<()> {
    let unknown = || Failure::config(format!("--set {key}: there is no such place in the file"));
    let mut parts: Vec<&str> = key.split('.').collect();
    let last = parts.pop().filter(|part| !part.is_empty()).ok_or_else(unknown)?;
    let mut place = table;
    let mut parts = parts.into_iter().peekable();
    while let Some(part) = parts.next() {
        let entry = place.entry(part).or_insert_with(|| toml::Value::Table(toml::Table::new()));
        place = match entry {
            toml::Value::Table(inner) => inner,
            toml::Value::Array(items) => {
                let index = parts.next().and_then(|part| part.parse::<usize>().ok());
                index.and_then(|index| items.get_mut(index)?.as_table_mut()).ok_or_else(unknown)?
            }
            _ => return Err(unknown().into()),
        };
    }
    place.insert(last.to_owned(), scalar(value));
    Ok(())
}

fn scalar(value: &str) -> toml::Value {
    let document = format!("value = {value}");
    let parsed = toml::from_str::<toml::Table>(&document).ok().and_then(|mut table| table.remove("value"));
    parsed.unwrap_or_else(|| toml::Value::String(value.to_owned()))
}

fn resolve(name: &str, raw: RawPipeline, env: &BTreeMap<String, String>) -> anyhow::Result<Pipeline> {
    let resolved = masked(&raw);
    let database = raw.target.database.clone().unwrap_or_else(|| "cdcprobe".to_owned());
    let (compression, timeout, views) = (
        raw.target.compression.unwrap_or(false),
        raw.target.timeout.map_or(Duration::from_secs(60), |span| span.0),
        raw.target.views.unwrap_or(true),
    );
    let lookup = |name: &str| env.get(name).cloned();
    let with_lab = raw.lab.is_some() && raw.source.url.is_none() && raw.target.url.is_none();
    if raw.lab.is_some() && raw.source.url.is_some() != raw.target.url.is_some() {
        let (given, other) = if raw.source.url.is_some() {
            ("source.url", "target.url")
        } else {
            ("target.url", "source.url")
        };
        return Err(Failure::config(format!("{given} is given, but not {other}"))
            .hint("give both to use servers of your own, or neither to start the file's lab")
            .into());
    }
    let sink = sink_kind(raw.target.kind.as_deref())?;
    let source =
        (!with_lab).then(|| SourceEndpoint::parse(raw.source.url.as_deref(), &lookup)).transpose()?;
    let target = (!with_lab && sink == SinkKind::ClickHouse)
        .then(|| TargetEndpoint::parse(raw.target.url.as_deref(), Some(&database), &lookup))
        .transpose()?
        .map(|endpoint| TargetEndpoint { compression, timeout, views, ..endpoint });
    let workers = positive("snapshot.workers", raw.snapshot.workers.unwrap_or(4))?;
    let probes =
        raw.probe.into_iter().map(|probe| resolve_probe(probe, workers)).collect::<anyhow::Result<_>>()?;
    let lab = with_lab.then_some(raw.lab).flatten().map(|lab| LabPlan {
        topology: lab.topology,
        pg_bin: lab.pg_bin,
        clickhouse: lab.clickhouse,
    });
    if let Some(lab) = &lab
        && lab.topology != "cdc"
    {
        return Err(Failure::config(format!("lab.topology {:?} is not known", lab.topology))
            .hint("there is \"cdc\": one PostgreSQL, one ClickHouse")
            .into());
    }
    Ok(Pipeline {
        name: name.to_owned(),
        description: raw.description,
        lab,
        source,
        target,
        sink,
        database,
        compression,
        timeout,
        views,
        tables: table_names(&raw.source.tables)?,
        publication: raw.source.publication.unwrap_or_else(|| "cdcprobe".to_owned()),
        slot: raw.source.slot.unwrap_or_else(|| "cdcprobe".to_owned()),
        snapshot_workers: workers,
        batch: resolve_batch(&raw.batch)?,
        transactions: resolve_transactions(&raw.transactions),
        values: raw.values.resolve()?,
        probes,
        resolved,
    })
}

/// The file as resolved, URLs without their passwords.
fn masked(raw: &RawPipeline) -> serde_json::Value {
    let mut raw = raw.clone();
    for url in [&mut raw.source.url, &mut raw.target.url] {
        *url = url.as_deref().map(mask_url);
    }
    serde_json::to_value(raw).unwrap_or_default()
}

/// Hides what stands between `:` and the last `@`, and any `password=`.
fn mask_url(url: &str) -> String {
    if let Some((scheme, rest)) = url.split_once("://") {
        let (before, after) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let authority = match before.rsplit_once('@') {
            Some((user, host)) => format!(
                "{}@{host}",
                user.split_once(':').map_or(user.to_owned(), |(user, _)| format!("{user}:***"))
            ),
            None => before.to_owned(),
        };
        let after = if after.contains("password") { "/***" } else { after };
        return format!("{scheme}://{authority}{after}");
    }
    if url.contains("password") { "***".to_owned() } else { url.to_owned() }
}

fn sink_kind(kind: Option<&str>) -> anyhow::Result<SinkKind> {
    match kind.unwrap_or("clickhouse") {
        "clickhouse" => Ok(SinkKind::ClickHouse),
        "null" => Ok(SinkKind::Null),
        other => Err(Failure::config(format!("target.kind {other:?} is not known"))
            .hint("there are \"clickhouse\" and \"null\"")
            .into()),
    }
}

fn positive(key: &str, value: u32) -> anyhow::Result<u32> {
    if value > 0 { Ok(value) } else { Err(Failure::config(format!("{key} must be at least 1")).into()) }
}

fn table_names(names: &[String]) -> anyhow::Result<Vec<TableName>> {
    let names: Vec<TableName> = names.iter().map(|name| name.parse()).collect::<Result<_, Failure>>()?;
    let mut seen = BTreeSet::new();
    match names.iter().find(|name| !seen.insert(*name)) {
        Some(twice) => Err(Failure::config(format!("source.tables names {twice} twice")).into()),
        None => Ok(names),
    }
}

fn resolve_batch(raw: &RawBatch) -> anyhow::Result<BatchLimits> {
    let max_wait = raw.max_wait.map_or(Duration::from_secs(1), |span| span.0);
    Ok(BatchLimits {
        max_bytes: raw.max_bytes.unwrap_or(ByteSize::mib(32)),
        max_rows: positive("batch.max_rows", raw.max_rows.unwrap_or(100_000))?,
        max_wait,
        min_wait: raw.min_wait.map_or(Duration::from_millis(50), |span| span.0).min(max_wait),
        in_flight: positive("batch.in_flight", raw.in_flight.unwrap_or(2))?,
    })
}

fn resolve_transactions(raw: &RawTransactions) -> Transactions {
    let default = Transactions::default();
    Transactions {
        streaming: raw.streaming.unwrap_or(default.streaming),
        two_phase: raw.two_phase.unwrap_or(default.two_phase),
        spill_folder: raw.spill_folder.clone().unwrap_or(default.spill_folder),
    }
}

fn resolve_probe(raw: RawProbe, workers: u32) -> anyhow::Result<Probe> {
    let expect =
        raw.expect.iter().map(|(metric, bounds)| (metric.clone(), resolve_bounds(*bounds))).collect();
    let repeat = positive("probe.repeat", raw.repeat.unwrap_or(3))?;
    let kind = match raw.kind.as_str() {
        "backfill" => ProbeKind::Backfill(resolve_backfill(&raw, workers)?),
        "drain" => ProbeKind::Drain(resolve_drain(&raw)?),
        other => {
            return Err(Failure::config(format!("probe.kind {other:?} is not known"))
                .hint("there are \"backfill\" and \"drain\"")
                .into());
        }
    };
    Ok(Probe { kind, repeat, expect })
}

fn resolve_bounds(raw: RawBounds) -> Bounds {
    Bounds { min: raw.min, max: raw.max }
}

fn resolve_backfill(raw: &RawProbe, workers: u32) -> anyhow::Result<BackfillProbe> {
    if raw.load.is_some() {
        return Err(Failure::config("probe.load does not belong to a backfill").into());
    }
    let workers = raw.workers.clone().unwrap_or_else(|| vec![workers]);
    if workers.is_empty() || workers.contains(&0) {
        return Err(Failure::config("probe.workers must name worker counts of at least 1").into());
    }
    Ok(BackfillProbe {
        table: raw.table.as_deref().unwrap_or("public.cdc_backfill").parse()?,
        rows: raw.rows.unwrap_or(2_000_000),
        payload_bytes: raw.payload_bytes.unwrap_or(200),
        workers,
    })
}

fn resolve_drain(raw: &RawProbe) -> anyhow::Result<DrainProbe> {
    let load = raw.load.as_ref().ok_or_else(|| {
        Failure::config("probe.load is missing: a drain needs something to drain")
            .hint("load = { workload = \"insert-batch\", duration = \"20s\" }")
    })?;
    let load = resolve_load(load)?;
    let hold = raw.hold.map_or(load.duration / 2, |span| span.0).min(load.duration);
    Ok(DrainProbe { load, hold, decode_only: raw.decode_only.unwrap_or(true) })
}

fn resolve_load(raw: &RawLoad) -> anyhow::Result<LoadPlan> {
    let workload = match raw.workload.as_str() {
        "insert-batch" => Workload::InsertBatch {
            table: raw.table.as_deref().unwrap_or("public.cdc_probe").parse()?,
            rows_per_statement: positive("load.rows_per_statement", raw.rows_per_statement.unwrap_or(100))?,
            payload_bytes: raw.payload_bytes.unwrap_or(200),
        },
        "simple-update" => Workload::SimpleUpdate { scale: positive("load.scale", raw.scale.unwrap_or(10))? },
        other => {
            return Err(Failure::config(format!("load.workload {other:?} is not known"))
                .hint("there are \"insert-batch\" and \"simple-update\"")
                .into());
        }
    };
    if raw.rate.is_some_and(|rate| rate.is_nan() || rate <= 0.0) {
        return Err(Failure::config("load.rate must be above 0").into());
    }
    Ok(LoadPlan {
        workload,
        clients: positive("load.clients", raw.clients.unwrap_or(8))?,
        duration: raw.duration.map_or(Duration::from_secs(20), |span| span.0),
        rate_per_s: raw.rate,
        seed: raw.seed.unwrap_or(1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Kind;

    const FILE: &str = "[lab]\n[source]\ntables = [\"public.t\"]\n[[probe]]\nkind = \"drain\"\nload = { workload = \"insert-batch\" }\n";

    fn read(text: &str, sets: &[&str], env: &[(&str, &str)]) -> anyhow::Result<Pipeline> {
        let sets: Vec<String> = sets.iter().map(|&set| set.to_owned()).collect();
        let env = env.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        parse("x", "x.toml", text, &sets, &env)
    }

    fn refusal(text: &str, sets: &[&str]) -> String {
        let error = read(text, sets, &[]).unwrap_err();
        assert_eq!(Failure::find(&error).map(|failure| failure.kind), Some(Kind::Config));
        error.to_string()
    }

    #[test]
    fn set_beats_environment_beats_file_beats_default() {
        let text = format!("{FILE}[batch]\nmax_rows = 1\n");
        assert_eq!(read(FILE, &[], &[]).unwrap().batch.max_rows, 100_000);
        assert_eq!(read(&text, &[], &[]).unwrap().batch.max_rows, 1);
        let env = [("CDCPROBE_BATCH_MAX_ROWS", "2"), ("CDCPROBE_CACHE", "/x")];
        assert_eq!(read(&text, &[], &env).unwrap().batch.max_rows, 2);
        assert_eq!(read(&text, &["batch.max_rows=3"], &env).unwrap().batch.max_rows, 3);
    }

    #[test]
    fn arrays_are_reached_by_position() {
        let pipeline = read(FILE, &["probe.0.load.duration=5s", "probe.0.repeat=1"], &[]).unwrap();
        let ProbeKind::Drain(drain) = &pipeline.probes[0].kind else { panic!("a drain") };
        assert_eq!((drain.load.duration, pipeline.probes[0].repeat), (Duration::from_secs(5), 1));
        assert!(refusal(FILE, &["probe.7.repeat=1"]).contains("probe.7"));
    }

    #[test]
    fn urls_of_ones_own_replace_the_lab() {
        let urls = ["source.url=postgres://u:secret@h/d", "target.url=http://h:8123"];
        let pipeline = read(FILE, &urls, &[]).unwrap();
        assert!(pipeline.lab.is_none() && pipeline.source.is_some() && pipeline.target.is_some());
        assert!(!pipeline.resolved.to_string().contains("secret"), "{}", pipeline.resolved);
        assert!(refusal(FILE, &urls[..1]).contains("not target.url"));
        assert!(read(FILE, &[], &[]).unwrap().source.is_none());
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(refusal("[source]\ntabels = []\n", &[]).contains("tabels"));
        assert!(refusal(FILE, &["batch.max_row=1"]).contains("max_row"));
        assert!(refusal(FILE, &["batch.max_rows=0"]).contains("batch.max_rows"));
        assert!(refusal(FILE, &["nonsense"]).contains("nonsense"));
        assert!(refusal(FILE, &["source.tables=[\"a.b\", \"a.b\"]"]).contains("twice"));
        assert!(refusal(FILE, &["lab.topology=ha"]).contains("ha"));
        assert!(
            refusal("[[probe]]\nkind = \"drain\"\n", &["target.kind=null", "source.url=postgres://h/d"])
                .contains("load")
        );
    }

    #[test]
    fn passwords_are_masked_in_every_form() {
        for (url, expected) in [
            ("postgres://u:p@w@h:1/d?x=1", "postgres://u:***@h:1/d?x=1"),
            ("http://h:8123", "http://h:8123"),
            ("postgres://h/d?password=p", "postgres://h/***"),
            ("host=h password=p", "***"),
            ("host=h user=u", "host=h user=u"),
        ] {
            assert_eq!(mask_url(url), expected);
        }
    }
}
