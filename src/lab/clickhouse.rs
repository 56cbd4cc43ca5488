//! A ClickHouse of the lab: `clickhouse server`, or the engine of `libchdb.so` hosted in a process of ours.
//!
//! The library's `query_stable_v2(argc, argv)` runs clickhouse-local, and a query of that can open the real HTTP and
//! native listeners. So one call whose last query never ends is a server. It is made in a child process, this program
//! again with a hidden subcommand: its CPU and memory are its own, and SIGKILL of it is a real fault.
//!
//! **Who may connect.** Clients are the user `cdcprobe` with a random password (the configuration holds its SHA-256).
//! The embedded engine insists on running its own queries as `default` without a password, and a network rule does not
//! tell it from a client of 127.0.0.1. So `default` has no right but to open listeners and to read system.numbers, and
//! a quota of as many queries as the engine makes at its start: a client as `default` can have constants evaluated
//! (`select 1` counts in no quota), in little memory, and nothing else.
//!
//! Hazards: clickhouse-local takes a `config.xml` from its working directory, so that is a folder of its own.
//! `async_insert` is on by default in this version; the lab's profile turns it off, as inserts that are acknowledged
//! must be stored.

use std::{
    ffi::{CStr, CString, OsString, c_char, c_int, c_void},
    fs,
    os::unix::{ffi::OsStrExt, fs::DirBuilderExt},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use super::install::ClickHouseBinary;
use crate::{
    config::{Secret, TargetEndpoint},
    failure::Failure,
    host::{
        port,
        process::{Child, Signal, Spawn},
    },
};

pub const USER: &str = "cdcprobe";
pub const DATABASE: &str = "cdcprobe";
/// The hidden subcommand that hosts the engine.
pub const ENGINE_SUBCOMMAND: &str = "__clickhouse-engine";

const START_PATIENCE: Duration = Duration::from_secs(120);
const STOP_PATIENCE: Duration = Duration::from_secs(20);

/// Opens the listeners, and keeps them open for 300 years: one row a block, as the sleep of one block is limited. As many
/// queries as the quota `engine` allows.
const SERVE: &str = "system start listen http; system start listen tcp; \
    select sleepEachRow(1) from system.numbers limit 10000000000 format Null settings max_block_size = 1";

/// A node of the lab. Dropping it stops the server.
#[derive(Debug)]
pub struct ClickHouse {
    folder: PathBuf,
    binary: ClickHouseBinary,
    /// This program, to host the engine.
    host_program: PathBuf,
    http_port: u16,
    tcp_port: u16,
    password: Secret,
    child: Option<Child>,
}

impl ClickHouse {
    /// Make a new server's folder, which must not exist, and its configuration. Not started.
    pub fn create(
        binary: &ClickHouseBinary,
        host_program: &Path,
        folder: &Path,
        password: Secret,
    ) -> Result<ClickHouse> {
        let made = fs::DirBuilder::new().mode(0o700).create(folder);
        made.with_context(|| format!("create {}", folder.display()))?;
        let node = ClickHouse {
            folder: folder.to_owned(),
            binary: binary.clone(),
            host_program: host_program.to_owned(),
            http_port: port::free()?,
            tcp_port: port::free()?,
            password,
            child: None,
        };
        super::write_private(&node.folder.join("users.xml"), &users_xml(&node.password, &node.binary))?;
        super::write_private(&node.config_file(), &node.config_xml())?;
        Ok(node)
    }

    pub fn http_port(&self) -> u16 {
        self.http_port
    }

    /// Of the native protocol.
    pub fn tcp_port(&self) -> u16 {
        self.tcp_port
    }

    pub fn log(&self) -> PathBuf {
        self.folder.join("clickhouse.log")
    }

    /// `None` while it is not running.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::pid)
    }

    pub fn endpoint(&self) -> TargetEndpoint {
        TargetEndpoint {
            url: format!("http://127.0.0.1:{}", self.http_port),
            user: USER.to_owned(),
            password: Some(self.password.clone()),
            database: DATABASE.to_owned(),
            compression: false,
            timeout: Duration::from_secs(60),
            views: true,
        }
    }

    /// Start it, wait until it answers, and create the lab's database. Does nothing if it runs.
    pub async fn start(&mut self) -> Result<()> {
        if let Some(child) = &mut self.child
            && child.status()?.is_none()
        {
            return Ok(());
        }
        let (spawn, client) = (self.spawn(), client(&self.endpoint()));
        let answers = || select_one(&client);
        let started = super::start_child(&mut self.child, &spawn, START_PATIENCE, answers).await;
        started.map_err(|error| error.context(Failure::environment("ClickHouse does not start")))?;
        let create = format!("create database if not exists {DATABASE}");
        client.query(&create).execute().await.with_context(|| format!("create the database {DATABASE}"))
    }

    pub async fn stop(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        child.stop(&[(Signal::TERM, STOP_PATIENCE)]).await.context("stop ClickHouse")
    }

    /// SIGKILL. [`ClickHouse::start`] brings it back on the same data and ports.
    pub async fn kill9(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        child.kill_tree().await.context("kill ClickHouse")
    }

    fn config_file(&self) -> PathBuf {
        self.folder.join("server.xml")
    }

    /// Until it ends by itself; never if it has been stopped or killed by us.
    pub async fn ended(&mut self) -> anyhow::Error {
        match &mut self.child {
            Some(child) => child.ended().await,
            None => std::future::pending().await,
        }
    }

    fn spawn(&self) -> Spawn {
        let spawn = match &self.binary {
            ClickHouseBinary::Server(program) => Spawn::new("clickhouse", program, &self.folder)
                .args(["server".into(), option("--config-file=", &self.config_file())])
                // Its watchdog would be another process between us and the server.
                .env("CLICKHOUSE_WATCHDOG_ENABLE", "0"),
            ClickHouseBinary::Library(library) => {
                Spawn::new("clickhouse", &self.host_program, &self.folder).args(self.engine_args(library))
            }
        };
        spawn.log(&self.log())
    }

    fn engine_args(&self, library: &Path) -> Vec<OsString> {
        vec![
            ENGINE_SUBCOMMAND.into(),
            "--lib".into(),
            library.into(),
            "--".into(),
            option("--config-file=", &self.config_file()),
            option("--path=", &self.folder.join("data")),
            format!("--http_port={}", self.http_port).into(),
            format!("--tcp_port={}", self.tcp_port).into(),
            "--listen_host=127.0.0.1".into(),
            format!("--query={SERVE}").into(),
        ]
    }

    fn config_xml(&self) -> String {
        let users = xml(&self.folder.join("users.xml").display().to_string());
        let own = match &self.binary {
            ClickHouseBinary::Library(_) => format!("<users_config>{users}</users_config>"),
            ClickHouseBinary::Server(_) => {
                let data = xml(&self.folder.join("data/").display().to_string());
                format!(
                    "<user_directories><users_xml><path>{users}</path></users_xml></user_directories>\
                     <path>{data}</path><tmp_path>{data}tmp/</tmp_path>\
                     <listen_host>127.0.0.1</listen_host><http_port>{}</http_port><tcp_port>{}</tcp_port>\
                     <logger><level>warning</level><console>true</console></logger>",
                    self.http_port, self.tcp_port
                )
            }
        };
        format!("<clickhouse>{own}</clickhouse>\n")
    }
}

async fn select_one(client: &clickhouse::Client) -> Result<()> {
    client.query("select 1").fetch_one::<u8>().await?;
    Ok(())
}

/// Without a database: the lab's own may not exist yet.
fn client(endpoint: &TargetEndpoint) -> clickhouse::Client {
    let client = clickhouse::Client::default().with_url(&endpoint.url).with_user(&endpoint.user);
    match &endpoint.password {
        Some(password) => client.with_password(password.expose()),
        None => client,
    }
}

fn option(name: &str, path: &Path) -> OsString {
    let mut option = OsString::from(name);
    option.push(path);
    option
}

fn xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The users, see the module's header. A real server needs no passwordless `default`, so it has none.
fn users_xml(password: &Secret, binary: &ClickHouseBinary) -> String {
    let hash: String =
        Sha256::digest(password.expose().as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    let engine = match binary {
        ClickHouseBinary::Library(_) => include_str!("clickhouse-engine-user.xml"),
        ClickHouseBinary::Server(_) => "",
    };
    include_str!("clickhouse-users.xml")
        .replace("USER_NAME", USER)
        .replace("PASSWORD_SHA256", &hash)
        .replace("<!-- ENGINE_USER -->", engine)
}

/// What the engine returns: `local_result_v2` of chdb.h.
#[repr(C)]
struct EngineResult {
    buffer: *mut c_char,
    length: usize,
    vector: *mut c_void,
    elapsed: f64,
    rows_read: u64,
    bytes_read: u64,
    error_message: *mut c_char,
}

type QueryStableV2 = unsafe extern "C" fn(argc: c_int, argv: *mut *mut c_char) -> *mut EngineResult;

/// Host the engine in this process: returns when its last query ends, which for the lab's is an error. The
/// arguments are clickhouse-local's.
pub fn run_engine(library: &Path, arguments: &[OsString]) -> Result<()> {
    let arguments = std::iter::once(OsString::from("clickhouse")).chain(arguments.iter().cloned());
    let strings: Vec<CString> = arguments
        .map(|argument| CString::new(argument.as_bytes()))
        .collect::<Result<_, _>>()
        .context("an argument holds a NUL byte")?;
    let mut argv: Vec<*mut c_char> = strings.iter().map(|string| string.as_ptr().cast_mut()).collect();
    argv.push(std::ptr::null_mut());
    let count = c_int::try_from(strings.len()).context("too many arguments")?;
    // SAFETY: the library is the one that the lab was given or whose checksum it verified; its initialisers run here.
    let loaded = unsafe { libloading::Library::new(library) };
    let loaded = loaded.with_context(|| format!("load {}", library.display()))?;
    // SAFETY: chdb.h declares it with this signature.
    let query = unsafe { loaded.get::<QueryStableV2>(b"query_stable_v2\0") };
    let query = query.with_context(|| format!("{} has no query_stable_v2", library.display()))?;
    // SAFETY: argv holds `count` strings and a final null, all alive until the call returns.
    let result = unsafe { query(count, argv.as_mut_ptr()) };
    // SAFETY: null, or a result of that layout that stays valid, since it is never freed.
    let outcome = unsafe { engine_error(result) };
    // Its threads still run: unloading the code under them would crash.
    std::mem::forget(loaded);
    outcome
}

/// # Safety
/// `result` is null or points to a result of the engine.
unsafe fn engine_error(result: *mut EngineResult) -> Result<()> {
    // SAFETY: as the caller promises.
    let Some(result) = (unsafe { result.as_ref() }) else { bail!("the ClickHouse engine gives no result") };
    if result.error_message.is_null() {
        return Ok(());
    }
    // SAFETY: the engine terminates its message with a NUL.
    let message = unsafe { CStr::from_ptr(result.error_message) };
    bail!("the ClickHouse engine ends: {}", message.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_hold_a_hash_and_only_the_embedded_engine_has_a_passwordless_user() {
        let password = Secret::new("canary");
        let embedded = users_xml(&password, &ClickHouseBinary::Library("x.so".into()));
        let server = users_xml(&password, &ClickHouseBinary::Server("clickhouse".into()));
        for users in [&embedded, &server] {
            assert!(
                !users.contains("canary")
                    && !users.contains("PASSWORD_SHA256")
                    && !users.contains("ENGINE_USER")
            );
            let found = users.split("<password_sha256_hex>").nth(1).unwrap().split('<').next().unwrap();
            assert_eq!(found.len(), 64);
        }
        assert!(embedded.contains("<no_password/>") && !server.contains("<no_password/>"));
    }

    #[test]
    fn paths_are_escaped_in_xml() {
        assert_eq!(xml("/a<b>&c"), "/a&lt;b&gt;&amp;c");
    }

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let error = run_engine(Path::new("/no/such/libchdb.so"), &[]).unwrap_err();
        assert!(format!("{error:#}").contains("load /no/such/libchdb.so"));
    }
}
