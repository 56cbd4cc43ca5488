//! The run directory's two sides against each other, on real files.

use std::{
    fs,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::json;

use super::{
    run_dir::{LATENCY, MANIFEST, PHASES, SAMPLES},
    *,
};
use crate::{
    failure::{Failure, Kind},
    metric::{Better, Metric, Sample, Values, point},
};

fn manifest() -> Manifest {
    Manifest::new(
        "quickstart",
        "Where is the ceiling?",
        "cdc",
        json!({"source": {"url": "postgres://u:p@h/d"}}),
    )
}

fn values(pairs: &[(&str, f64)]) -> Values {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect()
}

/// A directory with a line of everything.
fn written() -> (tempfile::TempDir, RunDir) {
    let base = tempfile::tempdir().unwrap();
    let dir = RunDir::create(base.path(), manifest()).unwrap();
    let phase = dir.start_phase(1, &point([("probe", "drain")]), "load").unwrap();
    dir.sample(5, "slot", values(&[("flush_lsn", 9.0), ("lag_s", f64::NAN)])).unwrap();
    dir.sample(6, "slot", values(&[("flush_lsn", 12.5)])).unwrap();
    let mut latencies = histogram::latency_histogram();
    latencies.record(1500).unwrap();
    dir.write_latency("insert", 0, 1_000_000, &latencies).unwrap();
    phase.end().unwrap();
    let metric = Metric::new("drain_rows_per_s", "rows/s", Better::Higher);
    let metrics =
        MetricSummary::new(&metric, point([]), &[3.0, 1.0, 2.0], Some((1.0, 3.0))).into_iter().collect();
    dir.write_outcome(&Outcome { metrics, verdict: "It holds.".to_owned(), ..Outcome::default() }).unwrap();
    (base, dir)
}

#[test]
fn what_was_written_reads_back() {
    let (_base, dir) = written();
    dir.update_manifest(|m| drop(m.server_versions.insert("postgres".to_owned(), "18.4".to_owned())))
        .unwrap();
    let conninfo = json!({"settings": {"primary_conninfo": "host=h password=p"}});
    dir.update_manifest(|m| drop(m.evidence.insert("postgres".to_owned(), conninfo))).unwrap();
    dir.finish(Status::Finished, None).unwrap();
    let run = RunDir::open(dir.path()).unwrap();
    assert_eq!(run.manifest.status, Status::Finished);
    assert_eq!(run.manifest.clock, dir.clock().anchor());
    assert_eq!(run.manifest.server_versions["postgres"], "18.4");
    assert_eq!(run.manifest.config["source"]["url"], "postgres://u:***@h/d");
    assert_eq!(run.manifest.evidence["postgres"]["settings"]["primary_conninfo"], "host=h password=***");
    assert_eq!(run.phases.iter().map(|p| p.event).collect::<Vec<_>>(), [Edge::Start, Edge::End]);
    let flush = |t_us, lsn| Sample { t_us, meter: "slot".to_owned(), values: values(&[("flush_lsn", lsn)]) };
    assert_eq!(run.samples, [flush(5, 9.0), flush(6, 12.5)], "NaN is left out");
    assert_eq!(run.latencies[0].latencies.max(), 1500);
    assert_eq!(run.outcome.as_ref().unwrap().metric("drain_rows_per_s", None).unwrap().median, 2.0);
    assert_eq!(run.notes, Vec::<String>::new());
    assert_eq!(run.id(), dir.path().file_name().unwrap().to_str().unwrap());
}

#[test]
fn runs_of_one_second_get_folders_of_their_own() {
    let base = tempfile::tempdir().unwrap();
    let paths: std::collections::BTreeSet<_> =
        (0..8).map(|_| RunDir::create(base.path(), manifest()).unwrap().path().to_owned()).collect();
    assert_eq!(paths.len(), 8);
}

#[test]
fn a_run_killed_while_writing_loses_its_last_line_only() {
    for (name, torn) in
        [(SAMPLES, "{\"t_us\":7,\"met"), (PHASES, "{"), (LATENCY, "Tag=insert,1.000,1.000,2.000,HISTFAAAA")]
    {
        let (_base, dir) = written();
        let path = dir.path().join(name);
        fs::write(&path, fs::read_to_string(&path).unwrap() + torn).unwrap();
        let run = RunDir::open(dir.path()).unwrap();
        assert_eq!((run.samples.len(), run.phases.len(), run.latencies.len()), (2, 2, 1), "{name}");
        assert!(run.notes.len() == 1 && run.notes[0].contains(name), "{:?}", run.notes);
        assert_eq!(run.manifest.status, Status::Running);
    }
}

#[test]
fn damage_elsewhere_is_refused_by_line() {
    let (_base, dir) = written();
    let path = dir.path().join(SAMPLES);
    fs::write(&path, "oops\n".to_owned() + &fs::read_to_string(&path).unwrap()).unwrap();
    let error = RunDir::open(dir.path()).unwrap_err();
    assert!(error.to_string().starts_with("line 1 of samples.jsonl"), "{error}");
    assert_eq!(Failure::find(&error).unwrap().kind, Kind::Config);
}

#[test]
fn refuses_strangers_and_newer_formats_with_a_hint() {
    let (base, dir) = written();
    let failure = |error: anyhow::Error| {
        let failure = Failure::find(&error).unwrap();
        assert!(failure.kind == Kind::Config && failure.hint.is_some());
        failure.message.clone()
    };
    assert!(failure(RunDir::open(base.path()).unwrap_err()).contains("is no run directory"));
    let path = dir.path().join(MANIFEST);
    fs::write(&path, fs::read_to_string(&path).unwrap().replace("_version\": 1", "_version\": 99")).unwrap();
    assert!(failure(RunDir::open(dir.path()).unwrap_err()).contains("format version 99"));
}

#[test]
fn a_phase_that_is_dropped_has_ended() {
    let base = tempfile::tempdir().unwrap();
    let dir = RunDir::create(base.path(), manifest()).unwrap();
    drop(dir.start_phase(2, &point([]), "drain").unwrap());
    let run = RunDir::open(dir.path()).unwrap();
    assert!(phase::spans(&run.phases)[0].end_us.is_some());
}

#[test]
fn an_unwritable_place_is_named() {
    let error = RunDir::create("/proc/nowhere".as_ref(), manifest()).err().unwrap();
    let failure = Failure::find(&error).unwrap();
    assert!(failure.kind == Kind::Environment && failure.message.contains("/proc/nowhere"), "{failure:?}");
}

/// Each reading is handed to the test by a channel: no sleeping, no guessing.
#[tokio::test]
async fn the_sampler_records_gaps_lateness_and_a_last_reading() {
    let base = tempfile::tempdir().unwrap();
    let dir = RunDir::create(base.path(), manifest()).unwrap();
    let (seen, mut readings) = tokio::sync::mpsc::unbounded_channel();
    let count = Arc::new(Mutex::new(0.0));
    let mut sampler = sampler::Sampler::new(dir.clone());
    sampler.meter("test", Duration::from_millis(1), move || {
        let (seen, count) = (seen.clone(), Arc::clone(&count));
        Box::pin(async move {
            let mut count = count.lock().unwrap();
            *count += 1.0;
            seen.send(*count).unwrap();
            if *count == 2.0 { anyhow::bail!("not now") } else { Ok(values(&[("count", *count)])) }
        })
    });
    while readings.recv().await.unwrap() < 4.0 {}
    let reports = sampler.stop().await.unwrap();
    let run = RunDir::open(dir.path()).unwrap();
    let counts: Vec<f64> = run.samples.iter().map(|s| s.values["count"]).collect();
    assert_eq!(counts[..3], [1.0, 3.0, 4.0], "the failed reading is a gap");
    assert_eq!((reports[0].readings, reports[0].failures), (counts.len() as u64, 1));
    assert!(counts.len() >= 4, "stopping takes a last reading");
    assert!(run.samples.iter().all(|s| s.values.contains_key("sample_late_us")));
    assert!(run.samples.windows(2).all(|pair| pair[0].t_us <= pair[1].t_us));
}
