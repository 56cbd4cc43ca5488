//! What docs/ lists must be all that there is.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("the file is there")
}

/// The kinds of failure as the source lists them: name and code.
fn kinds(source: &str) -> BTreeMap<u32, String> {
    let variant = |line: &str| {
        let (name, code) = line.trim().strip_suffix(',')?.split_once(" = ")?;
        Some((code.parse().ok()?, name.to_owned()))
    };
    source.lines().filter_map(variant).collect()
}

/// The table's rows: code and kind.
fn documented(doc: &str) -> BTreeMap<u32, String> {
    let row = |line: &str| {
        let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
        Some((cells.next()?.parse().ok()?, cells.next()?.to_owned()))
    };
    doc.lines().filter_map(row).collect()
}

#[test]
fn exit_codes_are_the_same_in_code_doc_and_help() {
    let (source, doc) = (read("src/failure.rs"), documented(&read("docs/exit-codes.md")));
    let kinds = kinds(&source);
    assert!(kinds.len() >= 8, "{kinds:?}");
    let output = Command::new(env!("CARGO_BIN_EXE_cdcprobe")).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let listed = help.split_once("Exit codes:").expect("--help lists them").1;
    let listed: Vec<u32> =
        listed.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect();
    let codes: Vec<u32> = [0].into_iter().chain(kinds.keys().copied()).collect();
    assert_eq!(listed, codes, "--help");
    assert_eq!(doc.keys().copied().collect::<Vec<_>>(), codes, "docs/exit-codes.md");
    for (code, variant) in kinds {
        let shown = format!("Kind::{variant} => \"{}\"", doc[&code]);
        assert!(source.contains(&shown), "docs/exit-codes.md calls {code} {:?}", doc[&code]);
    }
}

#[test]
fn every_key_of_a_pipeline_file_is_documented() {
    let doc = read("docs/pipelines.md");
    // Up to the section as it is once it has been checked, which repeats the keys.
    let values = read("src/config/values.rs");
    let source =
        read("src/config/raw.rs") + values.split("/// The section, checked.").next().unwrap_or_default();
    let field = |line: &str| Some(line.trim().strip_prefix("pub ")?.split_once(": ")?.0.to_owned());
    let keys: Vec<String> = source.lines().filter_map(field).collect();
    assert!(keys.len() > 30, "{keys:?}");
    let sections = ["lab", "source", "target", "snapshot", "batch", "transactions", "values", "probe"];
    for key in keys {
        let written = if sections.contains(&key.as_str()) { format!("[{key}]") } else { format!("`{key}`") };
        assert!(doc.contains(&written), "docs/pipelines.md has no {written}");
    }
}

#[test]
fn the_crate_page_names_every_module() {
    let source = read("src/lib.rs");
    let modules = source.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    for module in modules {
        assert!(source.contains(&format!("[`{module}`]")), "{module}");
    }
}
