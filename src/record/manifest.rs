//! `manifest.json`: what ran where, on what, with which settings.

use std::{collections::BTreeMap, fs, path::Path};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Anchor;

/// Raised when a reader of an older version would misread a file.
pub const FORMAT_VERSION: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Still going, or killed: nobody wrote an end.
    Running,
    Finished,
    Interrupted,
    Failed,
}

/// The manifest. Fields that only the caller knows are public and start empty.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub format_version: u32,
    pub status: Status,
    /// The error of a failed run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub tool: Tool,
    pub pipeline: String,
    pub description: String,
    /// `cdc`, or whatever describes servers that we did not start.
    pub topology: String,
    pub clock: Anchor,
    pub host: HostFacts,
    /// The pipeline file as resolved; secrets masked.
    pub config: Value,
    /// `postgres: "18.4"`, `clickhouse: "26.8.1"`.
    #[serde(default)]
    pub server_versions: BTreeMap<String, String>,
    /// Settings and facts that matter to the figures, by server: `{postgres: {wal_level: "logical"}, …}`.
    #[serde(default)]
    pub evidence: BTreeMap<String, Value>,
}

impl Manifest {
    /// A manifest of this tool on this machine. `config` is masked once more on its way in.
    pub fn new(pipeline: &str, description: &str, topology: &str, config: Value) -> Self {
        let mut config = config;
        mask(&mut config);
        Manifest {
            format_version: FORMAT_VERSION,
            status: Status::Running,
            error: None,
            tool: Tool::this(),
            pipeline: pipeline.to_owned(),
            description: description.to_owned(),
            topology: topology.to_owned(),
            clock: Anchor::default(),
            host: HostFacts::read(),
            config,
            server_versions: BTreeMap::new(),
            evidence: BTreeMap::new(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tool {
    pub name: String,
    pub version: String,
    /// From `CDCPROBE_COMMIT` in the build's environment; `unknown` without it.
    pub commit: String,
    /// A debug build measures a slower pipe.
    pub optimised: bool,
}

impl Tool {
    fn this() -> Self {
        Tool {
            name: env!("CARGO_PKG_NAME").to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: option_env!("CDCPROBE_COMMIT").unwrap_or("unknown").to_owned(),
            optimised: !cfg!(debug_assertions),
        }
    }
}

/// The machine that the tool ran on. Empty strings and zeros where the kernel did not tell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFacts {
    pub name: String,
    pub kernel: String,
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    pub memory_bytes: u64,
    /// cgroup v2 `cpu.max` and `memory.max` of the root that this process sees, where there are any.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cgroup: BTreeMap<String, String>,
}

impl HostFacts {
    pub fn read() -> Self {
        HostFacts {
            name: first_line("/proc/sys/kernel/hostname"),
            kernel: first_line("/proc/sys/kernel/osrelease"),
            cpu: field("/proc/cpuinfo", "model name"),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_bytes: kibibytes(&field("/proc/meminfo", "MemTotal")),
            cgroup: cgroup_limits(),
        }
    }
}

fn first_line(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().lines().next().unwrap_or_default().to_owned()
}

/// The first `name : value` of a /proc file.
fn field(path: &str, name: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.find(|(key, _)| key.trim() == name).map_or_else(String::new, |(_, value)| value.trim().to_owned())
}

fn kibibytes(text: &str) -> u64 {
    let number = text.trim_end_matches("kB").trim().parse::<u64>();
    number.unwrap_or(0).saturating_mul(1024)
}

fn cgroup_limits() -> BTreeMap<String, String> {
    let root = Path::new("/sys/fs/cgroup");
    let read =
        |name: &str| Some((name.to_owned(), fs::read_to_string(root.join(name)).ok()?.trim().to_owned()));
    ["cpu.max", "memory.max", "io.max"].into_iter().filter_map(read).filter(|(_, v)| !v.is_empty()).collect()
}

/// Replaces what looks like a secret by `***`: values under keys that name one, passwords inside URLs and key=value
/// strings. The configuration masks its own; this is the last gate before a file that people share.
pub fn mask(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match names_a_secret(key) && !value.is_null() {
                    true => *value = Value::from("***"),
                    false => mask(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(mask),
        Value::String(text) => *text = mask_text(text),
        _ => {}
    }
}

fn names_a_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    ["password", "passwd", "secret", "token"].iter().any(|word| key.ends_with(word))
}

fn mask_text(text: &str) -> String {
    mask_key_value(&mask_url(text))
}

/// `scheme://user:password@host` without its password.
fn mask_url(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let authority_end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(authority_end);
    // A password with an unescaped slash ends the authority early: then the last @ of the whole text counts.
    let (authority, tail) = match authority.contains('@') || !rest.contains('@') {
        true => (authority, tail),
        false => rest.split_at(rest.rfind('@').expect("it contains one") + 1),
    };
    match authority.rsplit_once('@') {
        Some((user, host)) if user.contains(':') => {
            let name = user.split(':').next().unwrap_or_default();
            format!("{scheme}://{name}:***@{host}{tail}")
        }
        _ => text.to_owned(),
    }
}

/// `password=…` and `sslpassword=…` of a key=value string or of a URL's query, up to a space or `&`, or quoted.
fn mask_key_value(text: &str) -> String {
    const KEY: &str = "password=";
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.to_ascii_lowercase().find(KEY) {
        let (head, value) = rest.split_at(at + KEY.len());
        out.push_str(head);
        out.push_str("***");
        rest = &value[secret_len(value)..];
    }
    out + rest
}

fn secret_len(value: &str) -> usize {
    match value.strip_prefix('\'') {
        Some(quoted) => quoted.find('\'').map_or(value.len(), |end| end + 2),
        None => value.find([' ', '&']).unwrap_or(value.len()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn masks_every_form_of_a_password() {
        for (raw, masked) in [
            ("postgres://u:hunter2@h:5432/db?sslmode=require", "postgres://u:***@h:5432/db?sslmode=require"),
            ("postgres://u@h/db", "postgres://u@h/db"),
            ("postgres://u:a/b@c@h/db", "postgres://u:***@h/db"),
            ("http://h:8123/?user=x&password=hunter2&q=1", "http://h:8123/?user=x&password=***&q=1"),
            ("host=h password=hunter2 dbname=d", "host=h password=*** dbname=d"),
            ("host=h password='hun ter2' dbname=d", "host=h password=*** dbname=d"),
            ("public.cdc_probe", "public.cdc_probe"),
        ] {
            assert_eq!(mask_text(raw), masked);
        }
    }

    #[test]
    fn masks_keys_at_any_depth_and_leaves_the_rest() {
        let mut value = json!({"a": [{"Password": "x", "url": "http://u:p@h"}], "password_encryption": "md5", "api_token": null});
        mask(&mut value);
        assert_eq!(
            value,
            json!({"a": [{"Password": "***", "url": "http://u:***@h"}], "password_encryption": "md5", "api_token": null})
        );
    }

    #[test]
    fn reads_this_machine() {
        let host = HostFacts::read();
        assert!(host.cores > 0 && host.memory_bytes > 1 << 20 && !host.kernel.is_empty(), "{host:?}");
    }
}
