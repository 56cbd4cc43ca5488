//! A connection string and the environment, as libpq reads them, to a [`SourceEndpoint`].

use std::{fs, path::PathBuf, time::Duration};

use anyhow::Result;

use super::{
    Host, SYSTEM_ROOTS, Secret, SourceEndpoint, SslMode, SslOptions,
    conninfo::{self, Parameters},
    passfile::{self, Login},
};
use crate::failure::Failure;

type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Parameter and environment variable.
const KNOWN: &[(&str, &str)] = &[
    ("host", "PGHOST"),
    ("port", "PGPORT"),
    ("user", "PGUSER"),
    ("dbname", "PGDATABASE"),
    ("password", "PGPASSWORD"),
    ("passfile", "PGPASSFILE"),
    ("connect_timeout", "PGCONNECT_TIMEOUT"),
    ("sslmode", "PGSSLMODE"),
    ("sslrootcert", "PGSSLROOTCERT"),
    ("sslcert", "PGSSLCERT"),
    ("sslkey", "PGSSLKEY"),
];

/// Parameters that say what we do anyhow; any other value of theirs is refused.
const IMPLIED: &[(&str, &[&str])] = &[
    ("channel_binding", &["prefer"]),
    ("client_encoding", &["UTF8", "utf8", "UTF-8", "utf-8", "auto"]),
    ("gssencmode", &["disable", "prefer"]),
    ("keepalives", &["1"]),
    ("load_balance_hosts", &["disable"]),
    ("sslcompression", &["0"]),
    ("sslnegotiation", &["postgres"]),
    ("sslsni", &["1"]),
    ("target_session_attrs", &["any"]),
];

/// Where PostgreSQL's packages and PostgreSQL itself put the socket.
const SOCKET_FOLDERS: [&str; 2] = ["/var/run/postgresql", "/tmp"];

const DEFAULT_PORT: u16 = 5432;

/// libpq waits for ever; a tool that is to report cannot.
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

impl SourceEndpoint {
    /// Reads a `postgres://` URL or `key=value` pairs; what they leave out comes from libpq's environment variables
    /// (by `env`), then from its defaults. The password: from the text, PGPASSWORD or the password file.
    ///
    /// Errors: a [`Failure`] of kind configuration that names the parameter and never holds a password.
    pub fn parse(text: Option<&str>, env: Env<'_>) -> Result<SourceEndpoint> {
        let parameters = conninfo::parse(text.unwrap_or_default()).map_err(|error| {
            Failure::config(format!("the source's connection string has {error}"))
                .hint("postgres://user@host:port/database?sslmode=…, or host=… port=… user=… dbname=…")
        })?;
        refuse_unknown(&parameters)?;
        let given = Given { parameters, env };
        let hosts = hosts(&given)?;
        let user = given.get("user").or_else(|| operating_system_user(env)).ok_or_else(|| {
            Failure::config("no user for the source, and this account has no name")
                .hint("set PGUSER, or user=…")
        })?;
        let database = given.get("dbname").unwrap_or_else(|| user.clone());
        let password = match given.get("password") {
            Some(password) => Some(Secret::new(password)),
            None => password_from_file(&given, &hosts, &database, &user)?,
        };
        let (ssl, connect_timeout) = (ssl(&given)?, connect_timeout(&given)?);
        Ok(SourceEndpoint { hosts, user, password, database, ssl, connect_timeout })
    }
}

/// The parameters of the text, and the environment behind them.
struct Given<'a> {
    parameters: Parameters,
    env: Env<'a>,
}

impl Given<'_> {
    /// From the text, else from the environment; an empty value counts as none.
    fn get(&self, name: &str) -> Option<String> {
        let in_text = self.parameters.iter().rev().find(|(known, _)| known == name);
        let in_text = in_text.map(|(_, value)| value.clone()).filter(|value| !value.is_empty());
        in_text.or_else(|| self.variable(KNOWN.iter().find(|(known, _)| *known == name)?.1))
    }

    fn variable(&self, name: &str) -> Option<String> {
        (self.env)(name).filter(|value| !value.is_empty())
    }

    /// A file in libpq's folder below the home folder, if it is there.
    fn home_file(&self, name: &str) -> Option<PathBuf> {
        Some(PathBuf::from(self.variable("HOME")?).join(name)).filter(|path| path.exists())
    }
}

fn refuse_unknown(parameters: &Parameters) -> Result<(), Failure> {
    for (name, value) in parameters {
        let implied = IMPLIED.iter().find(|(known, _)| known == name);
        match implied {
            Some((_, values)) if values.contains(&value.as_str()) => {}
            Some((_, values)) => {
                return Err(Failure::config(format!(
                    "the source's parameter `{name}` has a value that is not supported"
                ))
                .hint(format!("leave it out: `{}` is what happens", values[0])));
            }
            None if KNOWN.iter().any(|(known, _)| known == name) => {}
            None => {
                let known = KNOWN.iter().map(|(known, _)| *known).collect::<Vec<_>>().join(", ");
                return Err(Failure::config(format!(
                    "unknown parameter `{name}` in the source's connection string"
                ))
                .hint(format!("known are {known}")));
            }
        }
    }
    Ok(())
}

/// Pairs hosts with ports: as many ports as hosts, or one for all.
fn hosts(given: &Given<'_>) -> Result<Vec<Host>, Failure> {
    let list = given.get("host").unwrap_or_default();
    let names: Vec<&str> = list.split(',').map(str::trim).collect();
    let ports = given.get("port").unwrap_or_default();
    let ports = ports.split(',').map(|text| port(text.trim())).collect::<Result<Vec<_>, _>>()?;
    if ports.len() != 1 && ports.len() != names.len() {
        let message = format!("the source has {} hosts and {} ports", names.len(), ports.len());
        return Err(Failure::config(message).hint("give one port for all, or one for each host"));
    }
    let port_of = |at: usize| if ports.len() == 1 { ports[0] } else { ports[at] };
    Ok(names.iter().enumerate().flat_map(|(at, name)| host(name, port_of(at))).collect())
}

fn port(text: &str) -> Result<u16, Failure> {
    match text.parse() {
        _ if text.is_empty() => Ok(DEFAULT_PORT),
        Ok(port @ 1..) => Ok(port),
        _ => Err(Failure::config("the source's port is no number from 1 to 65535")),
    }
}

fn host(name: &str, port: u16) -> Vec<Host> {
    match name {
        "" => SOCKET_FOLDERS.map(|folder| Host::Unix { folder: folder.into(), port }).into(),
        folder if folder.starts_with('/') => vec![Host::Unix { folder: folder.into(), port }],
        name => vec![Host::Tcp { host: name.to_owned(), port }],
    }
}

fn connect_timeout(given: &Given<'_>) -> Result<Duration, Failure> {
    let Some(text) = given.get("connect_timeout") else { return Ok(DEFAULT_CONNECT_TIMEOUT) };
    match text.trim().parse::<i32>() {
        Ok(seconds) => Ok(Duration::from_secs(u64::try_from(seconds).unwrap_or(0))),
        Err(_) => Err(Failure::config("the source's connect_timeout is no whole number of seconds")
            .hint("0 waits for ever")),
    }
}

fn ssl(given: &Given<'_>) -> Result<SslOptions, Failure> {
    let root_cert =
        given.get("sslrootcert").map(PathBuf::from).or_else(|| given.home_file(".postgresql/root.crt"));
    let is_system = root_cert.as_deref() == Some(SYSTEM_ROOTS.as_ref());
    let mode = match given.get("sslmode") {
        Some(text) => ssl_mode(&text)?,
        None if is_system => SslMode::VerifyFull,
        None => SslMode::Prefer,
    };
    if is_system && mode != SslMode::VerifyFull {
        return Err(Failure::config("sslrootcert=system with an sslmode weaker than verify-full")
            .hint("use sslmode=verify-full: anybody can get a certificate from the system's authorities"));
    }
    let cert =
        given.get("sslcert").map(PathBuf::from).or_else(|| given.home_file(".postgresql/postgresql.crt"));
    let key = given.get("sslkey").map(PathBuf::from);
    let key = key.or_else(|| cert.as_ref().and_then(|_| given.home_file(".postgresql/postgresql.key")));
    Ok(SslOptions { mode, root_cert, cert, key })
}

fn ssl_mode(text: &str) -> Result<SslMode, Failure> {
    Ok(match text {
        "disable" => SslMode::Disable,
        "prefer" => SslMode::Prefer,
        "require" => SslMode::Require,
        "verify-ca" => SslMode::VerifyCa,
        "verify-full" => SslMode::VerifyFull,
        "allow" => {
            return Err(Failure::config(
                "sslmode=allow is not supported: it encrypts only when it is forced to",
            )
            .hint("use prefer, or better verify-full"));
        }
        _ => {
            return Err(Failure::config("the source's sslmode is unknown")
                .hint("disable, prefer, require, verify-ca or verify-full"));
        }
    })
}

/// The password that the file has for every host; only one is kept, so hosts whose passwords differ are refused
/// rather than told each other's.
fn password_from_file(
    given: &Given<'_>,
    hosts: &[Host],
    database: &str,
    user: &str,
) -> Result<Option<Secret>, Failure> {
    let path = given.get("passfile").map(PathBuf::from);
    let Some(path) = path.or_else(|| Some(PathBuf::from(given.variable("HOME")?).join(".pgpass"))) else {
        return Ok(None);
    };
    let Some(text) = passfile::read(&path) else { return Ok(None) };
    let mut found = hosts.iter().map(|host| {
        let (host, port) = login_host(host);
        passfile::find(&text, Login { host: &host, port, database, user })
    });
    let first = found.next().flatten();
    if found.any(|other| other != first) {
        return Err(Failure::config(format!(
            "{} has different passwords for the source's hosts",
            path.display()
        ))
        .hint("name one host, or give the password in PGPASSWORD"));
    }
    Ok(first.map(Secret::new))
}

/// The host as it stands in password files.
fn login_host(host: &Host) -> (String, u16) {
    match host {
        Host::Tcp { host, port } => (host.clone(), *port),
        Host::Unix { folder, port } if SOCKET_FOLDERS.iter().any(|known| folder.as_os_str() == *known) => {
            ("localhost".to_owned(), *port)
        }
        Host::Unix { folder, port } => (folder.display().to_string(), *port),
    }
}

/// The account's name by `/etc/passwd`, else as the shell says.
fn operating_system_user(env: Env<'_>) -> Option<String> {
    let id = rustix::process::geteuid().as_raw().to_string();
    let accounts = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let account = accounts
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find(|fields| fields.get(2) == Some(&id.as_str()));
    let name = account.and_then(|fields| fields.first().map(|name| (*name).to_owned()));
    name.or_else(|| env("USER")).or_else(|| env("LOGNAME")).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, os::unix::fs::PermissionsExt, path::Path};

    use super::*;
    use crate::failure::Kind;

    fn with(text: &str, variables: &[(&str, &str)]) -> Result<SourceEndpoint> {
        let variables: HashMap<_, _> = variables.iter().copied().collect();
        SourceEndpoint::parse(Some(text), &|name| variables.get(name).map(|value| (*value).to_owned()))
    }

    fn parsed(text: &str) -> SourceEndpoint {
        with(text, &[]).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn refused(text: &str, variables: &[(&str, &str)]) -> Failure {
        let error = with(text, variables).expect_err(text);
        let failure = error.downcast::<Failure>().expect("a failure");
        assert_eq!(failure.kind, Kind::Config);
        failure
    }

    fn tcp(host: &str, port: u16) -> Host {
        Host::Tcp { host: host.to_owned(), port }
    }

    fn unix(folder: &str, port: u16) -> Host {
        Host::Unix { folder: folder.into(), port }
    }

    #[test]
    fn hosts_and_ports() {
        for (text, hosts) in [
            ("postgres://a:1,b,[::1]:3/d", vec![tcp("a", 1), tcp("b", 5432), tcp("::1", 3)]),
            ("host=a,b port=7", vec![tcp("a", 7), tcp("b", 7)]),
            ("postgres://%2Fsockets:7", vec![unix("/sockets", 7)]),
            ("postgres:///d?host=/a,b", vec![unix("/a", 5432), tcp("b", 5432)]),
            ("", vec![unix("/var/run/postgresql", 5432), unix("/tmp", 5432)]),
        ] {
            assert_eq!(parsed(text).hosts, hosts, "{text}");
        }
    }

    #[test]
    fn text_before_environment_before_default() {
        let variables = [
            ("PGHOST", "env"),
            ("PGPORT", "1"),
            ("PGUSER", "envuser"),
            ("PGDATABASE", "envdb"),
            ("PGPASSWORD", "envsecret"),
            ("PGSSLMODE", "verify-full"),
            ("PGSSLROOTCERT", "/env.crt"),
            ("PGCONNECT_TIMEOUT", "3"),
        ];
        let from_env = with("", &variables).unwrap();
        assert_eq!(from_env.hosts, [tcp("env", 1)]);
        assert_eq!((from_env.user.as_str(), from_env.database.as_str()), ("envuser", "envdb"));
        assert_eq!(from_env.password, Some(Secret::new("envsecret")));
        assert_eq!(from_env.ssl.mode, SslMode::VerifyFull);
        assert_eq!(from_env.ssl.root_cert.as_deref(), Some(Path::new("/env.crt")));
        assert_eq!(from_env.connect_timeout, Duration::from_secs(3));

        let text = "postgres://u:p@h:2/d?sslmode=disable&connect_timeout=0";
        let from_text = with(text, &variables).unwrap();
        assert_eq!(from_text.hosts, [tcp("h", 2)]);
        assert_eq!((from_text.user.as_str(), from_text.database.as_str()), ("u", "d"));
        assert_eq!(from_text.password, Some(Secret::new("p")));
        assert_eq!(from_text.ssl.mode, SslMode::Disable);
        assert_eq!(from_text.connect_timeout, Duration::ZERO);

        let default = parsed("host=h user=ada");
        assert_eq!((default.database.as_str(), default.ssl.mode), ("ada", SslMode::Prefer));
        assert_eq!(default.connect_timeout, DEFAULT_CONNECT_TIMEOUT);
        assert!(!parsed("host=h").user.is_empty());
    }

    #[test]
    fn refusals_name_the_parameter_and_no_password() {
        for (text, named) in [
            ("postgres://u:canary@h?sslmoed=require", "sslmoed"),
            ("postgres://u:canary@h?sslmode=allow", "allow"),
            ("postgres://u:canary@h?sslmode=canary", "sslmode"),
            ("postgres://u:canary@h:canary", "port"),
            ("postgres://u:canary@h:0", "port"),
            ("postgres://u:canary%@h", "password"),
            ("host=h password='canary", "password"),
            ("postgres://u:12/canary@h", "%2F"),
            ("password=my canary", "quoted"),
            ("host=a,b port=1,2,3 password=canary", "3 ports"),
            ("postgres://u:canary@h?connect_timeout=soon", "connect_timeout"),
            ("postgres://u:canary@h?channel_binding=require", "channel_binding"),
            ("postgres://u:canary@h?sslrootcert=system&sslmode=require", "verify-full"),
            ("canary", "neither"),
        ] {
            let failure = refused(text, &[]);
            assert!(failure.message.contains(named), "{text}: {}", failure.message);
            let shown = format!("{failure:?}");
            assert!(!shown.contains("canary"), "{shown}");
        }
        assert!(!format!("{:?}", parsed("postgres://u:canary@h")).contains("canary"));
    }

    #[test]
    fn system_roots_mean_verify_full() {
        assert_eq!(parsed("host=h sslrootcert=system").ssl.mode, SslMode::VerifyFull);
    }

    #[test]
    fn password_file_and_default_certificates() {
        let home = tempfile::tempdir().unwrap();
        let pgpass = home.path().join(".pgpass");
        fs::write(&pgpass, "h:5432:d:u:right\nlocalhost:*:*:u:local\n/sockets:*:*:u:socket\n*:9:*:*:other\n")
            .unwrap();
        fs::set_permissions(&pgpass, fs::Permissions::from_mode(0o600)).unwrap();
        let folder = home.path().to_str().unwrap();
        let password = |text: &str, more: &[(&str, &str)]| {
            let variables = [&[("HOME", folder)], more].concat();
            with(text, &variables).unwrap().password.map(|secret| secret.expose().to_owned())
        };
        assert_eq!(password("postgres://u@h/d", &[]).as_deref(), Some("right"));
        assert_eq!(password("postgres://u@h/other", &[]), None);
        assert_eq!(password("user=u", &[]).as_deref(), Some("local"));
        assert_eq!(password("user=u host=/sockets", &[]).as_deref(), Some("socket"));
        assert_eq!(password("postgres://u@h/d", &[("PGPASSWORD", "env")]).as_deref(), Some("env"));
        assert_eq!(password("postgres://u:text@h/d", &[("PGPASSWORD", "env")]).as_deref(), Some("text"));
        assert_eq!(password("postgres://u@h/d", &[("PGPASSFILE", "/nowhere")]), None);
        assert_eq!(
            password(&format!("postgres://u@h/d?passfile={}", pgpass.display()), &[]).as_deref(),
            Some("right")
        );
        let failure = refused("postgres://u@h:5432,x:9/d", &[("HOME", folder)]);
        assert!(failure.message.contains("different passwords"));

        fs::create_dir(home.path().join(".postgresql")).unwrap();
        let ssl = |text: &str| with(text, &[("HOME", folder)]).unwrap().ssl;
        assert_eq!(
            ssl("host=h"),
            SslOptions { mode: SslMode::Prefer, root_cert: None, cert: None, key: None }
        );
        for name in ["root.crt", "postgresql.crt", "postgresql.key"] {
            fs::write(home.path().join(".postgresql").join(name), "").unwrap();
        }
        let found = ssl("host=h");
        assert!(found.root_cert.is_some() && found.cert.is_some() && found.key.is_some());
        assert_eq!(ssl("host=h sslrootcert=/mine").root_cert, Some("/mine".into()));
    }
}
