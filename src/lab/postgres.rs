//! A PostgreSQL of the lab: made with initdb, run as our child, killed and started again on the same data and port.
//!
//! `postgres` itself is the child, not pg_ctl, so that its end is ours to see. It listens on 127.0.0.1 and on a Unix
//! socket in its own folder, wants SCRAM, and keeps its durability settings (fsync, synchronous_commit): what is
//! measured on it must mean something. Only the room for WAL is larger, so that checkpoints do not disturb.
//!
//! Hazards:
//! - It refuses to run as root: see [`crate::host::account`]. Its programs must then be reachable by that account; a
//!   cache below a closed folder is not, and is mirrored into the lab's folder.
//! - Its signals: SIGINT is a fast shutdown (with a checkpoint), SIGQUIT an immediate one, SIGTERM waits for all
//!   clients. It gets SIGQUIT when we die: SIGKILL would leave its shared memory segment behind.

use std::{
    fs,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use tokio_postgres::{Config, NoTls};

use super::install::{self, PostgresBinaries};
use crate::{
    config::{
        Secret, SourceEndpoint,
        endpoint::{Host, SslMode, SslOptions},
    },
    failure::Failure,
    host::{
        account::{self, Account},
        port,
        process::{Child, Signal, Spawn},
    },
};

pub const USER: &str = "postgres";
pub const DATABASE: &str = "postgres";

const INITDB_PATIENCE: Duration = Duration::from_secs(120);
/// Long enough for crash recovery of a few gigabytes of WAL.
const START_PATIENCE: Duration = Duration::from_secs(300);
const STOP_PATIENCE: Duration = Duration::from_secs(30);
/// `sun_path` of a Unix socket's address holds 107 bytes; some clients take fewer.
const SOCKET_PATH_LIMIT: usize = 100;

/// Later entries win, so a caller's extra settings override these.
const SETTINGS: [(&str, &str); 14] = [
    ("listen_addresses", "127.0.0.1"),
    ("wal_level", "logical"),
    ("max_wal_senders", "20"),
    ("max_replication_slots", "20"),
    ("max_connections", "200"),
    ("shared_buffers", "256MB"),
    // Checkpoints by time, not by volume: at full speed the default of 1 GB means one every few seconds.
    ("max_wal_size", "4GB"),
    ("checkpoint_timeout", "15min"),
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("unix_socket_permissions", "0700"),
    ("password_encryption", "scram-sha-256"),
    ("log_min_messages", "warning"),
    ("log_line_prefix", "%m [%p] %q%a "),
];

/// A node of the lab. Dropping it stops the server.
#[derive(Debug)]
pub struct Postgres {
    folder: PathBuf,
    bin: PathBuf,
    account: Option<Account>,
    port: u16,
    password: Secret,
    settings: Vec<(String, String)>,
    child: Option<Child>,
}

impl Postgres {
    /// Make a new cluster in `folder`, which must not exist, with `settings` on top of the lab's own. Not started.
    pub async fn create(
        binaries: &PostgresBinaries,
        folder: &Path,
        password: Secret,
        settings: &[(String, String)],
    ) -> Result<Postgres> {
        let account = account::unprivileged();
        make_folder(folder, account.as_ref())?;
        let node = Postgres {
            folder: folder.to_owned(),
            bin: reachable_bin(binaries, folder, account.as_ref())?,
            account,
            port: port::free()?,
            password,
            settings: settings.to_vec(),
            child: None,
        };
        node.check_socket_path()?;
        node.initdb().await?;
        Ok(node)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder of the Unix socket.
    pub fn socket_folder(&self) -> PathBuf {
        self.folder.join("s")
    }

    pub fn data_folder(&self) -> PathBuf {
        self.folder.join("data")
    }

    pub fn log(&self) -> PathBuf {
        self.folder.join("postgres.log")
    }

    /// The postmaster's pid; `None` while it is not running.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::pid)
    }

    /// A program that came with this server: `psql`, `pgbench`, …
    pub fn program(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }

    /// Over TCP.
    pub fn endpoint(&self) -> SourceEndpoint {
        self.endpoint_at(Host::Tcp { host: "127.0.0.1".to_owned(), port: self.port })
    }

    /// Over the Unix socket.
    pub fn unix_endpoint(&self) -> SourceEndpoint {
        self.endpoint_at(Host::Unix { folder: self.socket_folder(), port: self.port })
    }

    fn endpoint_at(&self, host: Host) -> SourceEndpoint {
        SourceEndpoint {
            hosts: vec![host],
            user: USER.to_owned(),
            password: Some(self.password.clone()),
            database: DATABASE.to_owned(),
            ssl: SslOptions { mode: SslMode::Disable, root_cert: None, cert: None, key: None },
            connect_timeout: Duration::from_secs(10),
        }
    }

    /// Start it and wait until it answers `select 1`. Does nothing if it runs.
    pub async fn start(&mut self) -> Result<()> {
        if let Some(child) = &mut self.child
            && child.status()?.is_none()
        {
            return Ok(());
        }
        let arguments = ["-D".into(), self.data_folder().into_os_string()];
        let spawn = self.spawn("postgres").args(arguments).log(&self.log()).last_signal(Signal::QUIT);
        let config = sql_config(&self.endpoint());
        let answers = || select_one(&config);
        let started = super::start_child(&mut self.child, &spawn, START_PATIENCE, answers).await;
        started.map_err(|error| error.context(Failure::environment("PostgreSQL does not start")))
    }

    /// A fast shutdown: clients are cut off, a checkpoint is written.
    pub async fn stop(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let soon = Duration::from_secs(5);
        child.stop(&[(Signal::INT, STOP_PATIENCE), (Signal::QUIT, soon)]).await.context("stop PostgreSQL")
    }

    /// An immediate shutdown: like a crash, but nothing of it stays in the kernel. For a cluster to be thrown away.
    pub async fn discard(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        child.stop(&[(Signal::QUIT, Duration::from_secs(5))]).await.context("stop PostgreSQL")
    }

    /// SIGKILL to the postmaster and all its processes at once. [`Postgres::start`] recovers it.
    pub async fn kill9(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        child.kill_tree().await.context("kill PostgreSQL")
    }

    /// Until it ends by itself; never if it has been stopped or killed by us.
    pub async fn ended(&mut self) -> anyhow::Error {
        match &mut self.child {
            Some(child) => child.ended().await,
            None => std::future::pending().await,
        }
    }

    fn spawn(&self, program: &str) -> Spawn {
        Spawn::new(program, &self.bin.join(program), &self.folder).account(self.account.clone())
    }

    fn check_socket_path(&self) -> Result<()> {
        let socket = self.socket_folder().join(format!(".s.PGSQL.{}", self.port));
        if socket.as_os_str().len() > SOCKET_PATH_LIMIT {
            let message = format!("the path of PostgreSQL's socket is too long: {}", socket.display());
            bail!(Failure::config(message).hint("choose a shorter folder for the lab's data"));
        }
        Ok(())
    }

    async fn initdb(&self) -> Result<()> {
        let password_file = self.folder.join("initial-password");
        super::write_private(&password_file, &format!("{}\n", self.password.expose()))?;
        account::give(&password_file, self.account.as_ref())?;
        // --no-sync: an empty cluster need not survive a power cut; the first checkpoint syncs what matters later.
        let fixed =
            "--encoding=UTF8 --locale=C --auth=scram-sha-256 --data-checksums --no-sync --no-instructions";
        let initdb = self
            .spawn("initdb")
            .args(fixed.split(' '))
            .args([format!("--username={USER}")])
            .args([option("--pwfile=", &password_file), option("--pgdata=", &self.data_folder())]);
        let failed = || Failure::environment("initdb cannot create a PostgreSQL cluster");
        let made = initdb.run(INITDB_PATIENCE).await.with_context(failed);
        fs::remove_file(&password_file).context("remove the initial password")?;
        made?;
        self.write_settings()
    }

    fn write_settings(&self) -> Result<()> {
        let own = [
            ("port".to_owned(), self.port.to_string()),
            ("unix_socket_directories".to_owned(), self.socket_folder().display().to_string()),
        ];
        let fixed = SETTINGS.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let lines: String = fixed
            .chain(own)
            .chain(self.settings.iter().cloned())
            .map(|(name, value)| setting(&name, &value))
            .collect();
        let path = self.data_folder().join("postgresql.conf");
        let mut text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        text.push_str(&lines);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    }
}

/// For readiness checks and the lab's own SQL; the pipe has a connector of its own.
pub fn sql_config(endpoint: &SourceEndpoint) -> Config {
    let mut config = Config::new();
    for host in &endpoint.hosts {
        match host {
            Host::Tcp { host, port } => config.host(host).port(*port),
            Host::Unix { folder, port } => config.host_path(folder).port(*port),
        };
    }
    config.user(&endpoint.user).dbname(&endpoint.database).connect_timeout(Duration::from_secs(5));
    config.application_name("cdcprobe lab");
    if let Some(password) = &endpoint.password {
        config.password(password.expose());
    }
    config
}

async fn select_one(config: &Config) -> Result<()> {
    let (client, connection) = config.connect(NoTls).await?;
    let connection = tokio::spawn(connection);
    let answer = client.simple_query("select 1").await;
    drop(client);
    connection.await??;
    answer.map(drop).map_err(Into::into)
}

fn option(name: &str, path: &Path) -> std::ffi::OsString {
    let mut option = std::ffi::OsString::from(name);
    option.push(path);
    option
}

/// A line of postgresql.conf.
fn setting(name: &str, value: &str) -> String {
    format!("{name} = '{}'\n", value.replace('\'', "''"))
}

/// The node's folder and its socket's, owned by the account. Ours to enter too: we are that account, or root.
fn make_folder(folder: &Path, account: Option<&Account>) -> Result<()> {
    for folder in [folder, &folder.join("s")] {
        let made = fs::DirBuilder::new().mode(0o700).create(folder);
        made.with_context(|| format!("create {}", folder.display()))?;
        account::give(folder, account)?;
    }
    Ok(())
}

/// The programs' folder as the account can reach it: where they are, or a mirror of them in `folder`.
fn reachable_bin(binaries: &PostgresBinaries, folder: &Path, account: Option<&Account>) -> Result<PathBuf> {
    let Some(account) = account else { return Ok(binaries.bin.clone()) };
    if account.can_enter(&binaries.bin) {
        return Ok(binaries.bin.clone());
    }
    let mirror = folder.join("programs");
    install::mirror(&binaries.tree, &mirror).context("mirror PostgreSQL's programs into the lab's folder")?;
    Ok(mirror.join(binaries.bin.strip_prefix(&binaries.tree).context("bin/ lies in its tree")?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn settings_are_quoted() {
        assert_eq!(setting("a.b", "it's"), "a.b = 'it''s'\n");
    }

    #[test]
    fn a_reachable_tree_is_used_as_it_is_and_a_closed_one_mirrored() {
        let stranger = Account { name: "stranger".into(), uid: 4_000_000, gid: 4_000_000 };
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("pg");
        fs::create_dir_all(tree.join("x/bin")).unwrap();
        fs::write(tree.join("x/bin/postgres"), "#!").unwrap();
        let binaries = PostgresBinaries { bin: tree.join("x/bin"), tree };
        let into = folder.path().join("node");
        fs::create_dir(&into).unwrap();
        assert_eq!(reachable_bin(&binaries, &into, None).unwrap(), binaries.bin);
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let bin = reachable_bin(&binaries, &into, Some(&stranger)).unwrap();
        assert_eq!(bin, into.join("programs/x/bin"));
        assert!(bin.join("postgres").exists());
    }
}
