//! Who may import whom: the layers of docs/architecture.md, kept true by reading the sources.
//!
//! A path that begins with `crate::`, in a `use` or inline, must begin with an entry of its module's row. Where the code
//! reaches further for a good reason, the exception stands in [`EXCEPTIONS`], as narrow as it can be and with the reason;
//! one that is no longer needed fails the test too.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// What every module may use: numbers with units, and errors with remedies.
const FOR_ALL: [&str; 2] = ["units", "failure"];

/// Module, and the paths below `crate::` that it may use.
const RULES: &[(&str, &[&str])] = &[
    ("units", &[]),
    ("failure", &[]),
    ("metric", &[]),
    ("change", &[]),
    ("config", &["metric"]),
    ("postgres", &["config"]),
    ("host", &["config"]),
    ("source", &["change", "config", "postgres"]),
    ("sink", &["change", "config"]),
    ("pipeline", &["source", "sink", "change", "config"]),
    ("verify", &["change", "config", "postgres"]),
    ("check", &["change", "config", "postgres", "source", "sink", "pipeline", "load"]),
    ("load", &["config", "postgres"]),
    ("meter", &["metric", "postgres", "host", "pipeline::Counters"]),
    ("record", &["metric", "config"]),
    ("analyze", &["metric", "record"]),
    ("report", &["metric", "analyze", "record"]),
    ("lab", &["config", "postgres", "host"]),
    ("probe", &["config", "pipeline", "load", "meter", "record", "host", "verify"]),
    (
        "cli",
        &[
            "analyze", "check", "config", "host", "lab", "load", "meter", "metric", "pipeline", "postgres",
            "probe", "record", "report", "verify",
        ],
    ),
];

/// Module, path, reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("postgres", "change", "the catalog's answer is the row model's Table: a copy of it would say the same"),
    ("pipeline", "postgres", "the control session beside the stream: catalog, slot, publication"),
    (
        "verify",
        "sink::clickhouse",
        "it must quote and map types exactly as the sink does, through the sink's client",
    ),
    ("meter", "config::SourceEndpoint", "a meter opens its own session on the source"),
    ("meter", "load::LoadCounters", "what the writers have done is an observable like the pipe's counters"),
    ("analyze", "config", "verdicts compare medians with the pipeline file's bounds"),
    ("probe", "metric", "it names the metrics that it asks the meters for"),
    ("probe", "postgres", "phases need a session: fence, table sizes, settings evidence"),
    ("cli", "sink::clickhouse", "`verify` opens the target itself"),
    ("sink", "postgres::oid", "the numbers of built-in types: constants, no server behind them"),
];

fn sources() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut folders, mut files) = (vec![root.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of sources can be read") {
            let path = entry.expect("its entries too").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("a source is text");
                files.push((path.strip_prefix(&root).expect("it is below").to_owned(), text));
            }
        }
    }
    files.sort();
    files
}

/// `sink` for `sink/null.rs` and for `sink.rs`; none for the crate's roots.
fn module_of(file: &Path) -> Option<&str> {
    let first = file.iter().next()?.to_str()?;
    let module = first.strip_suffix(".rs").unwrap_or(first);
    (!matches!(module, "lib" | "main")).then_some(module)
}

/// Every path below `crate::` in a source, trees of braces taken apart: `units::Lsn`.
fn crate_paths(source: &str) -> Vec<String> {
    let code: Vec<&str> = source.lines().map(|line| line.split("//").next().unwrap_or(line)).collect();
    let code = code.join("\n");
    let mut paths = Vec::new();
    for (at, mark) in code.match_indices("crate::") {
        let word = |c: char| c.is_alphanumeric() || c == '_';
        if !code[..at].ends_with(word) {
            tree(&code[at + mark.len()..], "", &mut paths);
        }
    }
    paths
}

/// One use tree or path at the start of `text`; what follows it.
fn tree<'a>(text: &'a str, prefix: &str, paths: &mut Vec<String>) -> &'a str {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = rest.trim_start().trim_start_matches(',').trim_start();
            match rest.strip_prefix('}') {
                Some(after) => return after,
                None if rest.is_empty() => return rest,
                None => rest = tree(rest, prefix, paths),
            }
        }
    }
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '*')).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}::{name}") };
    if let Some(deeper) = rest.strip_prefix("::").filter(|deeper| !deeper.starts_with('<')) {
        return tree(deeper, &path, paths);
    }
    paths.push(path);
    // `as name`, and any character that is none of ours: on to the next comma or brace.
    &rest[rest.find([',', '}']).unwrap_or(rest.len())..]
}

fn is_below(path: &str, root: &str) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

fn exception(module: &str, path: &str) -> Option<usize> {
    EXCEPTIONS.iter().position(|(from, root, _)| *from == module && is_below(path, root))
}

/// The paths that `module` may not use.
fn forbidden(module: &str, source: &str) -> Vec<String> {
    let Some((_, allowed)) = RULES.iter().find(|(name, _)| *name == module) else {
        return vec![format!("(no row for module {module})")];
    };
    let may = |path: &str| {
        let mut roots = FOR_ALL.iter().chain(*allowed);
        roots.any(|root| is_below(path, root)) || is_below(path, module) || exception(module, path).is_some()
    };
    crate_paths(source).into_iter().filter(|path| !may(path)).collect()
}

#[test]
fn modules_import_only_what_their_layer_may() {
    let mut wrong = Vec::new();
    for (file, source) in sources() {
        let Some(module) = module_of(&file) else { continue };
        let paths = forbidden(module, &source).into_iter();
        wrong.extend(paths.map(|path| format!("{}: {module} may not use crate::{path}", file.display())));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_exception_is_still_needed() {
    let mut used = vec![false; EXCEPTIONS.len()];
    for (file, source) in sources() {
        let Some(module) = module_of(&file) else { continue };
        for path in crate_paths(&source) {
            if let Some(at) = exception(module, &path) {
                used[at] = true;
            }
        }
    }
    for ((module, path, _), used) in EXCEPTIONS.iter().zip(used) {
        assert!(used, "{module} no longer uses crate::{path}");
    }
}

#[test]
fn the_table_names_modules_that_exist_and_all_of_them() {
    let mut found: Vec<String> =
        sources().iter().filter_map(|(file, _)| module_of(file).map(str::to_owned)).collect();
    found.dedup();
    let mut ruled: Vec<&str> = RULES.iter().map(|(module, _)| *module).collect();
    found.sort();
    ruled.sort();
    found.dedup();
    assert_eq!(found, ruled);
}

#[test]
fn the_checker_sees_a_forbidden_import_in_every_form() {
    for source in [
        "use crate::lab::Lab;",
        "use crate::{\n    config::Probe,\n    lab::{Lab, LabOptions as Options},\n};",
        "use crate::{lab::{self, install::Choice}, units::Lsn};",
        "pub(crate) use crate::{metric::{A, B}, lab};",
        "fn f() { let _ = crate::lab::start(crate::units::Lsn(1)); }",
        "impl From<crate::lab::Lab> for X {}",
        "use crate::{config::{a::{b, c}, d}, lab::*};",
    ] {
        let wrong = forbidden("probe", source);
        assert!(!wrong.is_empty() && wrong.iter().all(|path| is_below(path, "lab")), "{source}: {wrong:?}");
    }
}

#[test]
fn the_checker_lets_pass_what_is_allowed() {
    let allowed =
        "//! See [`crate::lab`].\nuse crate::{failure::Failure, probe::bench};\nuse my_crate::lab::X;";
    assert_eq!(forbidden("probe", allowed), [""; 0]);
    assert_eq!(forbidden("meter", "use crate::pipeline::Counters;"), [""; 0]);
    assert_eq!(forbidden("meter", "use crate::pipeline::{Counters, Pipe};"), ["pipeline::Pipe"]);
    assert_eq!(forbidden("meter", "use crate::pipeline_two::Counters;"), ["pipeline_two::Counters"]);
    assert_eq!(forbidden("nobody", "").len(), 1);
}
