//! A PostgreSQL server for the connection tests, shared by those that run at the same time.

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, Weak},
    time::{Duration, Instant},
};

use cdcprobe::config::{SourceEndpoint, endpoint::Host};
use rustix::process::{Pid, Signal, getuid, kill_process};

use super::{
    certificates::{Authority, Pair},
    endpoint,
};

const HBA: &str = "
local all all trust
host all trusting,stubborn 127.0.0.1/32 trust
host all clear 127.0.0.1/32 password
host all md5 127.0.0.1/32 md5
host all scram 127.0.0.1/32 scram-sha-256
hostnossl all plain 127.0.0.1/32 scram-sha-256
hostssl all encrypted 127.0.0.1/32 scram-sha-256
hostssl all certified 127.0.0.1/32 cert
";

const ROLES: &str = "
create role trusting superuser replication login;
set password_encryption = 'md5';
create role md5 login password 'secret';
set password_encryption = 'scram-sha-256';
create role clear login password 'secret';
create role scram login password 'secret';
create role plain login replication password 'secret';
create role encrypted login replication password 'secret';
create role certified login replication;
create role stubborn login superuser replication;
alter role stubborn set datestyle = 'German';
alter role stubborn set statement_timeout = '5s';
alter role stubborn set search_path = 'public';
alter role stubborn set default_transaction_isolation = 'serializable';
";

pub struct Server {
    folder: tempfile::TempDir,
    process: Child,
    port: u16,
}

impl Server {
    /// The server that other tests are using now, or a new one; stopped when the last of them is done.
    pub fn shared() -> Arc<Server> {
        static RUNNING: Mutex<Weak<Server>> = Mutex::new(Weak::new());
        let mut running = RUNNING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        running.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Server::start(None));
            *running = Arc::downgrade(&server);
            server
        })
    }

    /// A server of one's own, with TLS by this certificate; client certificates are taken from the authority.
    pub fn with_tls(pair: &Pair, authority: &Authority) -> Server {
        Self::start(Some((pair, authority)))
    }

    fn start(tls: Option<(&Pair, &Authority)>) -> Server {
        let folder = tempfile::tempdir().expect("a folder");
        give_to_server(folder.path());
        run(as_server("initdb")
            .args(["--no-sync", "-A", "trust", "-U", "postgres", "-D"])
            .arg(folder.path().join("data")));
        let port = free_port();
        let settings = format!(
            "port = {port}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = '{}'\nwal_level = logical\n\
             fsync = off\nssl = {}\nssl_ca_file = '{}'\n",
            folder.path().display(),
            if tls.is_some() { "on" } else { "off" },
            if tls.is_some() { "root.crt" } else { "" },
        );
        if let Some((pair, authority)) = tls {
            write(&folder.path().join("data/server.crt"), &pair.certificate);
            write(&folder.path().join("data/server.key"), &pair.key);
            write(
                &folder.path().join("data/root.crt"),
                &fs::read_to_string(authority.root()).expect("a root"),
            );
        }
        write(&folder.path().join("data/postgresql.auto.conf"), &settings);
        write(&folder.path().join("data/pg_hba.conf"), HBA);
        let log = fs::File::create(folder.path().join("log")).expect("a log");
        let process = as_server("postgres")
            .arg("-D")
            .arg(folder.path().join("data"))
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .expect("start postgres");
        let server = Server { folder, process, port };
        server.await_ready();
        server
    }

    pub fn tcp(&self, user: &str) -> SourceEndpoint {
        endpoint(Host::Tcp { host: "127.0.0.1".to_owned(), port: self.port }, user)
    }

    /// By name: it resolves to ::1 as well, where nobody listens.
    pub fn localhost(&self, user: &str) -> SourceEndpoint {
        endpoint(Host::Tcp { host: "localhost".to_owned(), port: self.port }, user)
    }

    pub fn unix(&self, user: &str) -> SourceEndpoint {
        endpoint(Host::Unix { folder: self.folder.path().to_owned(), port: self.port }, user)
    }

    /// Ready is when it takes the SQL that makes the roles.
    fn await_ready(&self) {
        let end = Instant::now() + Duration::from_secs(30);
        let mut psql = Command::new(binary("psql"));
        psql.args(["-X", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", "postgres", "-c", ROLES, "-h"]);
        psql.arg(self.folder.path()).arg("-p").arg(self.port.to_string());
        loop {
            let output = psql.output().expect("psql");
            if output.status.success() {
                return;
            }
            if Instant::now() > end {
                let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
                panic!("postgres is not ready: {}\n{log}", String::from_utf8_lossy(&output.stderr));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = Pid::from_raw(self.process.id() as i32).expect("a process id");
        let _ = kill_process(pid, Signal::INT);
        let _ = self.process.wait();
    }
}

/// `CDCPROBE_PG_BIN`, or the folder of `postgres` on PATH.
fn binary(name: &str) -> PathBuf {
    if let Some(folder) = std::env::var_os("CDCPROBE_PG_BIN") {
        return Path::new(&folder).join(name);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let postgres =
        std::env::split_paths(&path).map(|folder| folder.join("postgres")).find(|file| file.exists());
    let postgres = postgres.expect("postgres on PATH, or CDCPROBE_PG_BIN");
    fs::canonicalize(postgres).expect("a real path").with_file_name(name)
}

/// A command of the server, as a user that it accepts: it refuses root.
fn as_server(name: &str) -> Command {
    let mut command = if getuid().is_root() {
        let mut setpriv = Command::new("setpriv");
        setpriv.args(["--reuid=postgres", "--regid=postgres", "--init-groups"]).arg(binary(name));
        setpriv
    } else {
        Command::new(binary(name))
    };
    command.env_clear().env("LC_ALL", "C").current_dir("/").stdin(Stdio::null());
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command
}

fn run(command: &mut Command) {
    let output = command.output().expect("start");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Writes a file for the server, readable by it alone.
fn write(path: &Path, text: &str) {
    fs::write(path, text).expect("write");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("permissions");
    give_to_server(path);
}

fn give_to_server(path: &Path) {
    if getuid().is_root() {
        let output = Command::new("id").args(["-u", "postgres"]).output().expect("id");
        let uid = String::from_utf8_lossy(&output.stdout).trim().parse().expect("a user postgres");
        chown(path, Some(uid), None).expect("chown");
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}
