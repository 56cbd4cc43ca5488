//! Where the servers are, who we are there, and how far we trust the network between.

mod conninfo;
mod passfile;
mod source;
mod target;

use std::{fmt, path::PathBuf, time::Duration};

use serde::{Serialize, Serializer};

/// A password. Shows as `***` wherever it is printed or serialised.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(value: impl Into<String>) -> Self {
        Secret(value.into())
    }

    /// The secret itself, for the wire only.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("***")
    }
}

/// `sslrootcert=system`: the authorities that this machine trusts.
pub const SYSTEM_ROOTS: &str = "system";

/// Where a PostgreSQL server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    Tcp {
        host: String,
        port: u16,
    },
    /// The folder of the socket `.s.PGSQL.<port>`.
    Unix {
        folder: PathBuf,
        port: u16,
    },
}

/// libpq's `sslmode`, with libpq's meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SslMode {
    Disable,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SslOptions {
    pub mode: SslMode,
    /// PEM file of the authorities to trust, or [`SYSTEM_ROOTS`]. [`SourceEndpoint::parse`] fills in libpq's
    /// `~/.postgresql/root.crt` when there is one (and `postgresql.crt`, `postgresql.key`); `None`: nobody is trusted.
    pub root_cert: Option<PathBuf>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

/// A PostgreSQL database to connect to.
#[derive(Clone, Debug)]
pub struct SourceEndpoint {
    /// Tried in order.
    pub hosts: Vec<Host>,
    pub user: String,
    pub password: Option<Secret>,
    pub database: String,
    pub ssl: SslOptions,
    pub connect_timeout: Duration,
}

/// A ClickHouse server to connect to, by HTTP.
#[derive(Clone, Debug)]
pub struct TargetEndpoint {
    /// `http://host:port`, without user or password.
    pub url: String,
    pub user: String,
    pub password: Option<Secret>,
    pub database: String,
    pub compression: bool,
    pub timeout: Duration,
    /// Whether each table that we make gets its `<table>_current` view.
    pub views: bool,
}
