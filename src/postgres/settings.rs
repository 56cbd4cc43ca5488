//! What every session of ours has pinned, SQL or replication, whatever the role, the database or the server says.
//!
//! They travel as startup parameters, so there is no moment without them. A server refuses a session that names a
//! setting it does not know; hence only those that PostgreSQL 10 has, and [`later`] for newer ones.

/// Name and value, known to every server since PostgreSQL 10.
pub const PINNED: &[(&str, &str)] = &[
    // How values look as text: decoders read exactly this.
    ("client_encoding", "UTF8"),
    ("datestyle", "ISO"),
    ("intervalstyle", "postgres"),
    ("timezone", "UTC"),
    ("bytea_output", "hex"),
    // Shortest form that reads back to the same float (before 12: 17 digits, which does as well).
    ("extra_float_digits", "3"),
    // Nobody's schema comes before pg_catalog; all our SQL names schemas.
    ("search_path", "pg_catalog"),
    ("standard_conforming_strings", "on"),
    // A row policy must fail the copy rather than thin it out.
    ("row_security", "off"),
    // Copies and slots take as long as they take; our own deadlines apply.
    ("statement_timeout", "0"),
    ("lock_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
    // Neutral, whatever the role's default is.
    ("default_transaction_isolation", "read committed"),
    ("default_transaction_deferrable", "off"),
];

/// Settings of newer servers as one statement to run first in a session; `None`: there are none.
/// `server_version` has the shape of `server_version_num`.
pub fn later(server_version: u32) -> Option<&'static str> {
    match server_version {
        170_000.. => Some("set idle_session_timeout = 0; set transaction_timeout = 0"),
        140_000.. => Some("set idle_session_timeout = 0"),
        _ => None,
    }
}

/// [`PINNED`] as libpq's `options` (`-c name=value …`), for tokio-postgres, which sets `client_encoding` itself.
pub fn options() -> String {
    let pinned = PINNED.iter().filter(|(name, _)| *name != "client_encoding");
    pinned.map(|(name, value)| format!("-c {name}={}", escaped(value))).collect::<Vec<_>>().join(" ")
}

/// Blanks and backslashes of an `options` value take a backslash.
fn escaped(value: &str) -> String {
    value
        .chars()
        .flat_map(|c| (c == '\\' || c.is_ascii_whitespace()).then_some('\\').into_iter().chain([c]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_escape_blanks() {
        let options = options();
        assert!(options.starts_with("-c datestyle=ISO -c intervalstyle=postgres "), "{options}");
        assert!(options.contains(r"-c default_transaction_isolation=read\ committed"), "{options}");
    }

    #[test]
    fn newer_servers_get_newer_settings() {
        assert_eq!(later(130_000), None);
        assert!(!later(160_009).unwrap().contains("transaction_timeout"));
        assert!(later(180_006).unwrap().contains("transaction_timeout"));
    }
}
