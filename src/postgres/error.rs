//! What can go wrong between us and a PostgreSQL server, and what to do about it.

use std::{io, time::Duration};

use crate::failure::{Failure, Kind};

/// An error of a connection or a session. [`WireError::is_retryable`] tells whether trying again may help;
/// [`Failure::from`] gives message, hint and exit code for people.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// Which server, database and user an attempt to connect was for. Never holds a password.
    #[error("cannot connect to PostgreSQL ({to}): {cause}")]
    Connect { to: String, cause: Box<WireError> },
    #[error("connection broken: {0}")]
    Io(io::Error),
    #[error("the host name cannot be resolved: {0}")]
    Resolve(io::Error),
    #[error("no answer within {} s", .0.as_secs_f64())]
    Timeout(Duration),
    #[error("the server closed the connection")]
    Closed,
    #[error("protocol violation: {0}")]
    Protocol(String),
    /// An ErrorResponse; `code` is the SQLSTATE.
    #[error("{message} (SQLSTATE {code}{})", detail.as_deref().map(|text| format!("; {text}")).unwrap_or_default())]
    Server { code: String, message: String, detail: Option<String>, hint: Option<String> },
    #[error("TLS: {0}")]
    Tls(String),
    #[error("authentication: {0}")]
    Auth(String),
}

impl WireError {
    /// Whether the same call may succeed later without anybody mending anything.
    pub fn is_retryable(&self) -> bool {
        match self {
            WireError::Connect { cause, .. } => cause.is_retryable(),
            WireError::Io(_) | WireError::Resolve(_) | WireError::Timeout(_) | WireError::Closed => true,
            WireError::Server { code, .. } => is_retryable_sqlstate(code),
            WireError::Protocol(_) | WireError::Tls(_) | WireError::Auth(_) => false,
        }
    }

    /// The server's SQLSTATE, if it was the server that refused.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            WireError::Connect { cause, .. } => cause.sqlstate(),
            WireError::Server { code, .. } => Some(code),
            _ => None,
        }
    }

    /// What the user can do about it, where that is known; otherwise the server's own hint.
    pub fn remedy(&self) -> Option<String> {
        let known = match self {
            WireError::Connect { cause, .. } => return cause.remedy(),
            WireError::Io(error) => io_remedy(error.kind()),
            WireError::Resolve(_) => Some("check the spelling of the host and the DNS of this machine"),
            WireError::Timeout(_) => Some(
                "is a firewall in between, or the address wrong? connect_timeout sets the limit in seconds",
            ),
            WireError::Server { code, .. } => sqlstate_remedy(code),
            WireError::Tls(_) => {
                Some("docs/connections.md explains sslmode, sslrootcert, sslcert and sslkey")
            }
            WireError::Auth(_) => {
                Some("passwords come from the URL, PGPASSWORD or ~/.pgpass; see docs/connections.md")
            }
            WireError::Closed => Some("the server's log says why"),
            WireError::Protocol(_) => Some("is this really a PostgreSQL server?"),
        };
        known.map(str::to_owned).or_else(|| self.server_hint())
    }

    fn server_hint(&self) -> Option<String> {
        match self {
            WireError::Server { hint, .. } => hint.clone(),
            _ => None,
        }
    }
}

/// Connection loss (class 08), too many connections, a slot or object in use, shutdown, restart, failed serialisation.
fn is_retryable_sqlstate(code: &str) -> bool {
    code.starts_with("08")
        || matches!(
            code,
            "53300" | "55006" | "57P01" | "57P02" | "57P03" | "57P05" | "40001" | "40P01" | "55P03"
        )
}

fn io_remedy(kind: io::ErrorKind) -> Option<&'static str> {
    match kind {
        io::ErrorKind::ConnectionRefused => {
            Some("is the server running, and does it listen on this host and port?")
        }
        io::ErrorKind::NotFound => Some("no socket in that folder: is the server running, with this port?"),
        io::ErrorKind::PermissionDenied => Some("this user may not open the server's socket"),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            Some("check the address and the route")
        }
        _ => None,
    }
}

fn sqlstate_remedy(code: &str) -> Option<&'static str> {
    match code {
        "28P01" => Some("wrong password: it comes from the URL, PGPASSWORD or ~/.pgpass, in this order"),
        "28000" => Some(
            "pg_hba.conf has no line for this user, database, address and encryption, or the role is missing",
        ),
        "3D000" => Some("no such database: name it in the URL or in PGDATABASE"),
        "42501" => {
            Some("the role lacks a right: replication needs the REPLICATION attribute, tables need SELECT")
        }
        "53300" => {
            Some("all connection slots are taken: raise max_connections or max_wal_senders, or close some")
        }
        "55006" => Some("somebody else uses it: stop the other consumer of the slot"),
        "57P03" => Some("the server is starting up or shutting down: try again shortly"),
        _ => None,
    }
}

/// What rustls reports travels inside an I/O error; it is told apart, since it does not pass by itself.
impl From<io::Error> for WireError {
    fn from(error: io::Error) -> WireError {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(inner) => WireError::Tls(super::tls::describe(inner)),
            None => WireError::Io(error),
        }
    }
}

impl From<WireError> for Failure {
    fn from(error: WireError) -> Failure {
        Failure { kind: Kind::Environment, message: error.to_string(), hint: error.remedy() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(code: &str) -> WireError {
        WireError::Server { code: code.into(), message: "no".into(), detail: None, hint: Some("ask".into()) }
    }

    #[test]
    fn retries_only_what_may_pass() {
        for code in ["08006", "53300", "55006", "57P01", "57P03"] {
            assert!(server(code).is_retryable(), "{code}");
        }
        for code in ["28P01", "28000", "3D000", "42P01", "55000", "XX000"] {
            assert!(!server(code).is_retryable(), "{code}");
        }
        let nested = WireError::Connect { to: "db".into(), cause: Box::new(WireError::Closed) };
        assert!(nested.is_retryable());
    }

    #[test]
    fn a_failure_has_the_remedy_or_the_servers_hint() {
        let failure = Failure::from(server("28P01"));
        assert_eq!(failure.kind, Kind::Environment);
        assert!(failure.hint.expect("a hint").contains("PGPASSWORD"));
        assert_eq!(Failure::from(server("42P01")).hint.as_deref(), Some("ask"));
    }
}
