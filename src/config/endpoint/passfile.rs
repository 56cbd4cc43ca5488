//! `~/.pgpass`: `host:port:database:user:password`, a backslash before `:` or `\`, `*` for any.
//!
//! Source: PostgreSQL manual, "The Password File". As in libpq, a file that others can read is not used, with a
//! warning, and a missing one is no error.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

/// Whose password is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Login<'a> {
    /// A name or address; `localhost` for the default socket folders; otherwise the socket's folder.
    pub host: &'a str,
    pub port: u16,
    pub database: &'a str,
    pub user: &'a str,
}

/// The file's text, if there is one that may be used.
pub fn read(path: &Path) -> Option<String> {
    let data = fs::metadata(path).ok()?;
    if !data.is_file() {
        tracing::warn!("password file {} is no plain file and is not used", path.display());
        return None;
    }
    if data.mode() & 0o077 != 0 {
        tracing::warn!(
            "password file {} can be read by others and is not used: chmod 0600 it",
            path.display()
        );
        return None;
    }
    match fs::read(path) {
        Ok(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) => {
            tracing::warn!("password file {} cannot be read: {error}", path.display());
            None
        }
    }
}

/// The password of the first line that fits.
pub fn find(text: &str, login: Login<'_>) -> Option<String> {
    let wanted = [login.host, &login.port.to_string(), login.database, login.user];
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| password(line, wanted)).find(|password| !password.is_empty())
}

fn password(line: &str, wanted: [&str; 4]) -> Option<String> {
    let mut rest = line;
    for value in wanted {
        let (field, after) = rest.split_at(field_end(rest)?);
        if field != "*" && unescaped(field) != value {
            return None;
        }
        rest = &after[1..];
    }
    Some(unescaped(rest))
}

/// Where the colon is that ends the field.
fn field_end(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.find(|c| {
        let ends = c == ':' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    })
}

fn unescaped(field: &str) -> String {
    let mut text = String::with_capacity(field.len());
    let mut chars = field.chars();
    while let Some(c) = chars.next() {
        text.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    text
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const LOGIN: Login<'_> = Login { host: "db", port: 5432, database: "app", user: "ada" };

    #[test]
    fn the_first_line_that_fits() {
        for (text, password) in [
            ("db:5432:app:ada:one\ndb:5432:app:ada:two", Some("one")),
            ("other:5432:app:ada:one\n*:*:*:ada:two", Some("two")),
            ("# db:5432:app:ada:no\n\nbroken\ndb:5432:app:ada:yes\r\n", Some("yes")),
            (r"db:5432:app:ada:a\:b\\c:d", Some(r"a:b\c:d")),
            ("db:5433:app:ada:one", None),
            ("db:5432:app:ada:", None),
            (r"\*:5432:app:ada:one", None),
            ("d*:5432:app:ada:one", None),
            ("", None),
        ] {
            assert_eq!(find(text, LOGIN).as_deref(), password, "{text}");
        }
        let odd = Login { host: "fe80::1", database: r"a\b", ..LOGIN };
        assert_eq!(find(r"fe80\:\:1:5432:a\\b:ada:p", odd).as_deref(), Some("p"));
    }

    #[test]
    fn a_file_that_others_can_read_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pgpass");
        assert_eq!(read(&path), None);
        fs::write(&path, "*:*:*:*:p").unwrap();
        for (mode, used) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read(&path).is_some(), used, "{mode:o}");
        }
        assert_eq!(read(folder.path()), None);
    }
}
