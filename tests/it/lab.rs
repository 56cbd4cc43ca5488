//! The lab: it starts, survives what it must survive, and leaves nothing behind.
//!
//! [`lab`] and [`options`] are for the other tests too.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use cdcprobe::{
    config::{Secret, SourceEndpoint, TargetEndpoint},
    failure::{Failure, Kind},
    host::usage,
    lab::{
        Lab, LabOptions,
        install::{self, Choice},
        postgres::sql_config,
        progress::Progress,
        state::{self, LabState, ProcessId},
    },
};

/// A lab of the default topology, its binaries fetched if they are missing. Never one of the user's.
pub async fn lab() -> Lab {
    Lab::start(&options()).await.expect("the lab starts")
}

/// The major version of the PostgreSQL that [`lab`] starts.
pub fn postgres_major() -> u32 {
    let Some(folder) = std::env::var_os("CDCPROBE_TEST_PG_BIN") else { return 18 };
    let output = Command::new(PathBuf::from(folder).join("postgres")).arg("--version").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let version = text.split_whitespace().find_map(|word| word.split('.').next()?.parse().ok());
    version.unwrap_or_else(|| panic!("a version in {text:?}"))
}

/// What [`lab`] starts, to be varied. State files stay in the build's folder, away from the user's labs. PostgreSQL is
/// that of the folder in `CDCPROBE_TEST_PG_BIN`, else what the lab installs.
pub fn options() -> LabOptions {
    LabOptions {
        binaries: Choice {
            pg_bin: std::env::var_os("CDCPROBE_TEST_PG_BIN").map(PathBuf::from),
            ..Choice::default()
        },
        host_program: Some(PathBuf::from(env!("CARGO_BIN_EXE_cdcprobe"))),
        state_folder: Some(state_folder()),
        ..LabOptions::default()
    }
}

fn state_folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("labs")
}

async fn sql(endpoint: &SourceEndpoint, statement: &str) -> Result<String, tokio_postgres::Error> {
    let (client, connection) = sql_config(endpoint).connect(tokio_postgres::NoTls).await?;
    let connection = tokio::spawn(connection);
    let messages = client.simple_query(statement).await?;
    drop(client);
    connection.await.unwrap()?;
    let rows = messages.iter().filter_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    Ok(rows.collect::<Vec<_>>().join(","))
}

fn clickhouse(endpoint: &TargetEndpoint) -> clickhouse::Client {
    let password = endpoint.password.as_ref().unwrap().expose();
    let client = clickhouse::Client::default().with_url(&endpoint.url);
    client.with_user(&endpoint.user).with_password(password).with_database(&endpoint.database)
}

async fn number(client: &clickhouse::Client, query: &str) -> u64 {
    client.query(query).fetch_one().await.unwrap()
}

/// The processes, shared memory and folder of a lab, to see whether they are gone.
struct Traces {
    processes: Vec<ProcessId>,
    /// By id: what a postmaster of long ago left behind may carry the pid of one of today.
    segments: Vec<u64>,
    folder: PathBuf,
}

/// Id and creator's pid of every System V segment.
fn shared_memory() -> Vec<(u64, u64)> {
    let segments = fs::read_to_string("/proc/sysvipc/shm").unwrap();
    let field = |line: &str, index| line.split_whitespace().nth(index)?.parse().ok();
    segments.lines().skip(1).filter_map(|line| Some((field(line, 1)?, field(line, 4)?))).collect()
}

impl Traces {
    fn of(state: &LabState) -> Traces {
        let postmaster = state.postgres.as_ref().unwrap().process.unwrap();
        let engine = state.clickhouse.as_ref().unwrap().process.unwrap();
        let backends = usage::children(postmaster.pid).unwrap();
        assert!(backends.len() >= 3, "a postmaster has children: {backends:?}");
        // A backend may end by itself meanwhile; the two servers may not.
        let backends = backends.into_iter().filter_map(ProcessId::of);
        let processes: Vec<ProcessId> = [postmaster, engine].into_iter().chain(backends).collect();
        assert!(postmaster.is_alive() && engine.is_alive());
        let ours = |pid: u64| processes.iter().any(|process| u64::from(process.pid) == pid);
        let segments = shared_memory().into_iter().filter(|(_, creator)| ours(*creator));
        let segments: Vec<u64> = segments.map(|(id, _)| id).collect();
        assert!(!segments.is_empty(), "a postmaster has shared memory");
        Traces { processes, segments, folder: state.data_folder.clone() }
    }

    fn expect_none(&self) {
        self.expect_no_process();
        assert!(!self.folder.exists(), "{} is left", self.folder.display());
    }

    fn expect_no_process(&self) {
        let alive: Vec<_> = self.processes.iter().filter(|process| process.is_alive()).collect();
        assert!(alive.is_empty(), "still running: {alive:?}");
        let left = shared_memory().into_iter().filter(|(id, _)| self.segments.contains(id)).count();
        assert_eq!(left, 0, "shared memory is left");
    }

    /// When nobody waits for them: the kernel's signal reaches the servers just after their owner's end.
    fn until_no_process(&self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.processes.iter().any(|process| process.is_alive()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.expect_no_process();
    }
}

#[tokio::test]
async fn both_servers_answer_and_refuse_other_passwords() {
    let lab = lab().await;
    let source = lab.source_endpoint();
    assert_eq!(sql(&source, "select 1").await.unwrap(), "1");
    assert_eq!(sql(&lab.source_unix_endpoint(), "select 1").await.unwrap(), "1");
    for (setting, value) in
        [("wal_level", "logical"), ("fsync", "on"), ("data_checksums", "on"), ("server_encoding", "UTF8")]
    {
        assert_eq!(sql(&source, &format!("show {setting}")).await.unwrap(), value, "{setting}");
    }
    let mut wrong = source.clone();
    wrong.password = Some(Secret::new("wrong"));
    assert!(sql(&wrong, "select 1").await.is_err());

    let mut target = lab.target_endpoint();
    let client = clickhouse(&target);
    assert_eq!(number(&client, "select toUInt64(getSetting('async_insert'))").await, 0);
    target.password = Some(Secret::new("wrong"));
    assert!(clickhouse(&target).query("select 1").fetch_one::<u8>().await.is_err());
    lab.stop().await.unwrap();
}

/// The embedded engine's own user has no password.
#[tokio::test]
async fn clickhouse_is_closed_to_its_default_user() {
    let lab = lab().await;
    let client = clickhouse::Client::default().with_url(lab.target_endpoint().url).with_user("default");
    for query in [
        "select number from system.numbers limit 1",
        "select count() from system.tables",
        "select * from url('http://127.0.0.1/', LineAsString)",
        "system stop listen http",
        "create database x",
    ] {
        assert!(client.query(query).execute().await.is_err(), "default may {query}");
    }
    assert_eq!(number(&clickhouse(&lab.target_endpoint()), "select toUInt64(1)").await, 1);
}

#[tokio::test]
async fn rows_survive_kill9_and_start_of_each_server() {
    let mut lab = lab().await;
    let (source, target) = (lab.source_endpoint(), clickhouse(&lab.target_endpoint()));
    sql(&source, "create table t as select generate_series(1, 1000) as id").await.unwrap();
    target.query("create table t (id UInt64) engine = MergeTree order by id").execute().await.unwrap();
    target.query("insert into t select number from numbers(1000)").execute().await.unwrap();

    let before = Traces::of(lab.state());
    lab.postgres().kill9().await.unwrap();
    lab.clickhouse().kill9().await.unwrap();
    assert_eq!((lab.postgres_pid(), lab.clickhouse_pid()), (None, None));
    assert!(before.processes.iter().all(|process| !process.is_alive()));
    assert!(sql(&source, "select 1").await.is_err());
    lab.postgres().start().await.unwrap();
    lab.clickhouse().start().await.unwrap();

    assert_eq!(sql(&source, "select count(*) from t").await.unwrap(), "1000");
    assert_eq!(number(&target, "select count() from t").await, 1000);
    lab.stop().await.unwrap();
}

#[tokio::test]
async fn a_stopped_server_starts_again() {
    let mut lab = lab().await;
    sql(&lab.source_endpoint(), "create table t (id int)").await.unwrap();
    lab.postgres().stop().await.unwrap();
    lab.postgres().start().await.unwrap();
    lab.postgres().start().await.expect("starting a running server does nothing");
    assert_eq!(sql(&lab.source_endpoint(), "select count(*) from t").await.unwrap(), "0");
}

#[tokio::test]
async fn two_labs_live_side_by_side_but_not_under_one_name() {
    let (a, b) = tokio::join!(lab(), lab());
    sql(&a.source_endpoint(), "create table only_in_a (id int)").await.unwrap();
    assert!(sql(&b.source_endpoint(), "select * from only_in_a").await.is_err());
    let names: Vec<String> = state::list(&state_folder()).unwrap().into_iter().map(|lab| lab.name).collect();
    assert!(names.contains(&a.name().to_owned()) && names.contains(&b.name().to_owned()));
    let same = LabOptions { name: Some(a.name().to_owned()), ..options() };
    assert!(Lab::start(&same).await.unwrap_err().to_string().contains("exists already"));
    a.stop().await.unwrap();
    assert_eq!(sql(&b.source_endpoint(), "select 1").await.unwrap(), "1");
}

#[tokio::test]
async fn nothing_is_left_after_stop_or_drop() {
    let (stopped, dropped) = tokio::join!(lab(), lab());
    let traces = [Traces::of(stopped.state()), Traces::of(dropped.state())];
    let names = [stopped.name().to_owned(), dropped.name().to_owned()];
    stopped.stop().await.unwrap();
    drop(dropped);
    traces.iter().for_each(Traces::expect_none);
    for name in names {
        assert!(!state_folder().join(format!("{name}.json")).exists());
    }
}

#[tokio::test]
async fn extra_settings_win() {
    let replica = LabOptions { postgres_settings: vec![("wal_level".into(), "replica".into())], ..options() };
    let lab = Lab::start(&replica).await.unwrap();
    assert_eq!(sql(&lab.source_endpoint(), "show wal_level").await.unwrap(), "replica");
}

#[tokio::test]
async fn a_kept_lab_leaves_its_folder_shut_down_cleanly() {
    let lab = Lab::start(&LabOptions { keep: true, ..options() }).await.unwrap();
    let (traces, folder) = (Traces::of(lab.state()), lab.folder().to_owned());
    lab.stop().await.unwrap();
    traces.expect_no_process();
    assert!(folder.join("pg/data/PG_VERSION").exists());
    assert!(!folder.join("pg/data/postmaster.pid").exists());
    fs::remove_dir_all(folder).unwrap();
}

/// Options whose folders are seen by this test alone.
fn in_folder(root: &Path) -> LabOptions {
    fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
    LabOptions { data_root: Some(root.to_owned()), state_folder: Some(root.join("state")), ..options() }
}

/// No lab's folder, no state file, no process that has its working directory there.
fn expect_empty(root: &Path) {
    let left = fs::read_dir(root).unwrap().flatten().filter(|entry| entry.file_name() != "state");
    assert_eq!(left.count(), 0, "a folder is left in {}", root.display());
    assert_eq!(fs::read_dir(root.join("state")).unwrap().count(), 0);
    let inside = |process: &procfs::process::Process| process.cwd().is_ok_and(|cwd| cwd.starts_with(root));
    assert_eq!(procfs::process::all_processes().unwrap().flatten().filter(inside).count(), 0);
}

#[tokio::test]
async fn nothing_is_left_of_a_start_that_postgres_fails() {
    let root = tempfile::tempdir().unwrap();
    let settings = vec![("shared_buffers".into(), "a lot".into())];
    let error =
        Lab::start(&LabOptions { postgres_settings: settings, ..in_folder(root.path()) }).await.unwrap_err();
    let message = format!("{error:#}");
    assert_eq!(Failure::find(&error).unwrap().kind, Kind::Environment);
    assert!(message.contains("PostgreSQL does not start") && message.contains("shared_buffers"), "{message}");
    expect_empty(root.path());
}

#[tokio::test]
async fn nothing_is_left_of_a_start_that_clickhouse_fails() {
    let root = tempfile::tempdir().unwrap();
    let program = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    fs::write(&program, "#!/bin/sh\necho no engine today\nexit 9\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let binaries = Choice { clickhouse: Some(program.to_path_buf()), ..Choice::default() };
    let error = Lab::start(&LabOptions { binaries, ..in_folder(root.path()) }).await.unwrap_err();
    let message = format!("{error:#}");
    assert!(
        message.contains("ClickHouse does not start") && message.contains("no engine today"),
        "{message}"
    );
    expect_empty(root.path());
}

#[tokio::test]
async fn a_broken_library_is_named() {
    let root = tempfile::tempdir().unwrap();
    let library = tempfile::Builder::new().suffix(".so").tempfile().unwrap();
    let binaries = Choice { clickhouse: Some(library.path().to_owned()), ..Choice::default() };
    let error = Lab::start(&LabOptions { binaries, ..in_folder(root.path()) }).await.unwrap_err();
    let message = format!("{error:#}");
    assert!(message.contains(&library.path().display().to_string()), "{message}");
}

/// As in a fresh clone below `mktemp -d`: only its owner may enter, PostgreSQL's account (when we are root) may not.
#[tokio::test]
async fn programs_below_a_closed_folder_can_be_used() {
    let binaries = install::resolve(&Choice::default(), &Progress::silent()).await.unwrap().postgres;
    let closed = tempfile::tempdir().unwrap();
    fs::set_permissions(closed.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let tree = closed.path().join("tree");
    install::mirror(&binaries.tree, &tree).unwrap();
    let pg_bin = Some(tree.join(binaries.bin.strip_prefix(&binaries.tree).unwrap()));
    let lab = Lab::start(&LabOptions { binaries: Choice { pg_bin, ..Choice::default() }, ..options() })
        .await
        .unwrap();
    assert_eq!(sql(&lab.source_endpoint(), "select 1").await.unwrap(), "1");
    let traces = Traces::of(lab.state());
    lab.stop().await.unwrap();
    traces.expect_none();
}

/// The program under test, with labs of its own.
fn program(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cdcprobe"));
    command.arg("lab").env("XDG_STATE_HOME", home).stderr(Stdio::null());
    command
}

fn output(home: &Path, args: &[&str]) -> String {
    let output = program(home).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A lab's owner that a failing test does not leave behind.
struct Owner(std::process::Child);

impl Drop for Owner {
    fn drop(&mut self) {
        // It may have ended long ago.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl std::ops::Deref for Owner {
    type Target = std::process::Child;

    fn deref(&self) -> &std::process::Child {
        &self.0
    }
}

impl std::ops::DerefMut for Owner {
    fn deref_mut(&mut self) -> &mut std::process::Child {
        &mut self.0
    }
}

fn up(home: &Path) -> (Owner, LabState) {
    let mut owner = program(home).args(["up", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(owner.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (Owner(owner), serde_json::from_str(&line).unwrap())
}

#[test]
fn nothing_is_left_after_sigkill_of_the_owner() {
    let home = tempfile::tempdir().unwrap();
    let (mut owner, lab) = up(home.path());
    let traces = Traces::of(&lab);
    owner.kill().unwrap();
    owner.wait().unwrap();
    traces.until_no_process();
    assert_eq!(output(home.path(), &["status", "--json"]).trim(), "[]");
    traces.expect_none();
}

#[test]
fn a_signal_or_lab_down_from_another_shell_stops_it() {
    let home = tempfile::tempdir().unwrap();
    let (mut owner, lab) = up(home.path());
    let traces = Traces::of(&lab);
    assert!(output(home.path(), &["status"]).contains(&lab.name));
    output(home.path(), &["down", "--name", &lab.name]);
    assert!(owner.wait().unwrap().success());
    traces.expect_none();
}

#[test]
fn a_detached_lab_outlives_the_command_that_started_it() {
    let home = tempfile::tempdir().unwrap();
    let lab: LabState = serde_json::from_str(&output(home.path(), &["up", "--detach", "--json"])).unwrap();
    let traces = Traces::of(&lab);
    let variables = output(home.path(), &["env"]);
    let port = lab.postgres.as_ref().unwrap().port;
    assert!(variables.contains(&format!("export PGPORT='{port}'")), "{variables}");
    let password = fs::read_to_string(&lab.clickhouse.as_ref().unwrap().password_file).unwrap();
    assert!(!variables.contains(&password), "a password is printed");
    output(home.path(), &["down"]);
    traces.expect_none();
}

#[test]
fn a_server_that_dies_ends_the_lab() {
    let home = tempfile::tempdir().unwrap();
    let (mut owner, lab) = up(home.path());
    let traces = Traces::of(&lab);
    let engine = lab.clickhouse.as_ref().unwrap().process.unwrap();
    cdcprobe::host::process::kill_leftover(engine.pid, engine.start_ticks);
    assert_eq!(owner.wait().unwrap().code(), Some(3));
    traces.expect_none();
}
