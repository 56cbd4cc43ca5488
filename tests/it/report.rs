//! Reports from a run directory made by hand, and its outcome derived again from the raw samples.

use std::{collections::BTreeMap, path::Path};

use assert_cmd::Command;
use cdcprobe::{
    analyze::run::{Expectations, outcome},
    config::Bounds,
    record::{Outcome, RunData, RunDir},
    report,
};
use serde_json::Value;

fn fixture() -> RunData {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/runs/20251201T030000Z-quickstart-00ab");
    RunDir::open(&path).expect("the fixture is whole")
}

fn expectations() -> Expectations {
    let at_least = |min: f64| Bounds { min: Some(min), max: None };
    let none = Bounds { min: None, max: Some(0.0) };
    let drain = [("drain_rows_per_s", at_least(2_000.0)), ("lost_rows", none)];
    let backfill = [("backfill_rows_per_s", at_least(15_000.0)), ("differing_rows", none)];
    let named = |bounds: &[(&str, Bounds)]| {
        bounds.iter().map(|(name, bounds)| ((*name).to_owned(), *bounds)).collect::<BTreeMap<_, _>>()
    };
    [("drain".to_owned(), named(&drain)), ("backfill".to_owned(), named(&backfill))].into()
}

/// The fixture with its outcome derived.
fn derived() -> RunData {
    let run = fixture();
    RunData { outcome: Some(outcome(&run, &expectations())), ..run }
}

#[test]
fn the_outcome_is_derived_from_raw_samples() {
    let outcome = derived().outcome.unwrap();
    insta::assert_snapshot!("outcome", serde_json::to_string_pretty(&outcome).unwrap());
}

/// The fixture was made with these rates; what comes out must be near to what went in.
#[test]
fn derived_figures_are_those_that_the_run_was_made_with() {
    let outcome = derived().outcome.unwrap();
    for (name, label, made) in [
        ("drain_rows_per_s", None, 2_500.0),
        ("decode_only_rows_per_s", None, 5_000.0),
        ("write_rows_per_s", None, 4_000.0),
        ("backfill_rows_per_s", Some(("workers", "2")), 20_000.0),
        ("backfill_rows_per_s", Some(("workers", "4")), 32_000.0),
    ] {
        let matches = |m: &&cdcprobe::record::MetricSummary| {
            m.metric == name && label.is_none_or(|(key, value)| m.point.get(key).is_some_and(|v| v == value))
        };
        let metric = outcome.metrics.iter().find(matches).unwrap();
        assert!((metric.median / made - 1.0).abs() < 0.05, "{name}: {} of {made}", metric.median);
        assert_eq!(metric.n, 3);
    }
}

#[test]
fn reports() {
    let run = derived();
    insta::assert_snapshot!("terminal", report::terminal(&run, false));
    insta::assert_snapshot!("markdown", report::markdown(&run));
}

#[test]
fn colour_only_adds_escapes() {
    let run = derived();
    let coloured = report::terminal(&run, true);
    let mut plain = String::new();
    for part in coloured.split("\u{1b}[") {
        plain.push_str(if plain.is_empty() { part } else { part.split_once('m').unwrap_or(("", part)).1 });
    }
    assert!(coloured.contains("\u{1b}[32m"));
    assert_eq!(plain.trim_start_matches("1m"), report::terminal(&run, false));
}

#[test]
fn a_run_without_an_outcome_says_so() {
    let run = fixture();
    assert!(report::terminal(&run, false).contains("It has no outcome."));
    assert!(report::markdown(&run).contains("## Phases"));
}

/// A copy of the fixture, its outcome written, as `cdcprobe run` leaves it.
fn copy() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let run = derived();
    for entry in std::fs::read_dir(&run.path).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    let json = serde_json::to_string_pretty(&run.outcome).unwrap();
    std::fs::write(folder.path().join("outcome.json"), json).unwrap();
    folder
}

fn command(run: &Path, flags: &[&str]) -> Command {
    let mut command = Command::cargo_bin("cdcprobe").unwrap();
    command.arg("report").arg(run).args(flags);
    command
}

#[test]
fn the_command_rebuilds_the_report() {
    let folder = copy();
    let run = command(folder.path(), &[]).assert().success();
    let printed = String::from_utf8(run.get_output().stdout.clone()).unwrap();
    let reread = RunDir::open(folder.path()).unwrap();
    assert_eq!(printed, report::terminal(&reread, false));
    let written = std::fs::read_to_string(folder.path().join("report.md")).unwrap();
    assert_eq!(written, report::markdown(&reread));
    let run = command(folder.path(), &["--json"]).assert().success();
    let outcome: Outcome = serde_json::from_slice(&run.get_output().stdout).unwrap();
    assert_eq!(Some(outcome), reread.outcome);
}

#[test]
fn the_command_refuses_what_is_no_run() {
    let folder = tempfile::tempdir().unwrap();
    let run = command(folder.path(), &[]).assert().code(2);
    let said = String::from_utf8(run.get_output().stderr.clone()).unwrap();
    assert!(said.contains("is no run directory") && said.contains("hint:"), "{said}");
}

#[test]
fn the_outcome_has_the_shape_of_its_schema() {
    let schema: Value = serde_json::from_str(include_str!("../../docs/outcome.schema.json")).unwrap();
    let outcome = serde_json::to_value(derived().outcome).unwrap();
    assert_eq!(violations(&schema, &schema, &outcome, "outcome"), Vec::<String>::new());
    let mut wrong = outcome.clone();
    wrong["metrics"][0]["n"] = Value::from("three");
    wrong["checks"][0]["status"] = Value::from("perhaps");
    wrong["surplus"] = Value::from(1);
    wrong.as_object_mut().unwrap().remove("verdict");
    let found = violations(&schema, &schema, &wrong, "outcome");
    assert_eq!(found.len(), 4, "{found:#?}");
}

/// What `value` breaks of a schema, for the keywords that ours uses: $ref, type, required, properties,
/// additionalProperties, items, enum, minItems, maxItems, minimum. A full validator would bring fifty crates.
fn violations(root: &Value, schema: &Value, value: &Value, at: &str) -> Vec<String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = root.pointer(reference.trim_start_matches('#')).expect("a reference within the schema");
        return violations(root, target, value, at);
    }
    if !has_type(&schema["type"], value) {
        return vec![format!("{at} is no {}", schema["type"])];
    }
    let mut found = Vec::new();
    if schema["enum"].as_array().is_some_and(|allowed| !allowed.contains(value)) {
        found.push(format!("{at} is {value}"));
    }
    if schema["minimum"].as_f64().is_some_and(|min| value.as_f64().is_none_or(|number| number < min)) {
        found.push(format!("{at} is below its minimum"));
    }
    match value {
        Value::Object(map) => found.extend(in_object(root, schema, map, at)),
        Value::Array(items) => found.extend(in_array(root, schema, items, at)),
        _ => {}
    }
    found
}

fn has_type(wanted: &Value, value: &Value) -> bool {
    match wanted.as_str() {
        None => true,
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("number") => value.is_number(),
        Some("integer") => value.is_u64() || value.is_i64(),
        Some(other) => panic!("the schema uses type {other}, which this test does not know"),
    }
}

fn in_object(root: &Value, schema: &Value, map: &serde_json::Map<String, Value>, at: &str) -> Vec<String> {
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let mut found: Vec<String> =
        required.filter(|key| !map.contains_key(*key)).map(|key| format!("{at} has no {key}")).collect();
    for (key, value) in map {
        let at = format!("{at}.{key}");
        match (schema["properties"].get(key), &schema["additionalProperties"]) {
            (Some(property), _) => found.extend(violations(root, property, value, &at)),
            (None, Value::Bool(false)) => found.push(format!("{at} is not in the schema")),
            (None, Value::Object(_)) => {
                found.extend(violations(root, &schema["additionalProperties"], value, &at))
            }
            _ => {}
        }
    }
    found
}

fn in_array(root: &Value, schema: &Value, items: &[Value], at: &str) -> Vec<String> {
    let (count, bound) = (items.len() as u64, |name: &str| schema[name].as_u64());
    let mut found = Vec::new();
    if bound("minItems").is_some_and(|min| count < min) || bound("maxItems").is_some_and(|max| count > max) {
        found.push(format!("{at} has {count} items"));
    }
    let each = items.iter().enumerate();
    found.extend(each.flat_map(|(n, item)| violations(root, &schema["items"], item, &format!("{at}[{n}]"))));
    found
}
