//! A ClickHouse URL and the environment to a [`TargetEndpoint`]. User and password leave the URL here, for good.

use std::time::Duration;

use anyhow::Result;
use percent_encoding::percent_decode_str;

use super::{Secret, TargetEndpoint};
use crate::failure::Failure;

const DEFAULT_DATABASE: &str = "cdcprobe";
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
const FORM: &str = "http://user@host:8123, or https://user@host:8443; the password in CLICKHOUSE_PASSWORD";

impl TargetEndpoint {
    /// Reads `http(s)://[user[:password]@]host[:port]`; what it leaves out comes from CLICKHOUSE_URL, or else
    /// CLICKHOUSE_HOST and CLICKHOUSE_PORT, from CLICKHOUSE_USER, CLICKHOUSE_PASSWORD and CLICKHOUSE_DATABASE (by
    /// `env`), then from the defaults: 127.0.0.1, ClickHouse's port 8123 (8443 for https), user `default`.
    ///
    /// Errors: a [`Failure`] of kind configuration that never holds a password.
    pub fn parse(
        text: Option<&str>,
        database: Option<&str>,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<TargetEndpoint> {
        let env = |name: &str| env(name).filter(|value| !value.is_empty());
        let text = text.map(str::to_owned).filter(|text| !text.is_empty());
        let url = text.or_else(|| env("CLICKHOUSE_URL")).unwrap_or_else(|| url_of(&env));
        let parts = Parts::parse(&url)?;
        let database = database.map(str::to_owned).or_else(|| env("CLICKHOUSE_DATABASE"));
        Ok(TargetEndpoint {
            url: parts.url,
            user: parts.user.or_else(|| env("CLICKHOUSE_USER")).unwrap_or_else(|| "default".to_owned()),
            password: parts.password.or_else(|| env("CLICKHOUSE_PASSWORD")).map(Secret::new),
            database: database.unwrap_or_else(|| DEFAULT_DATABASE.to_owned()),
            compression: false,
            timeout: DEFAULT_TIMEOUT,
            views: true,
        })
    }
}

fn url_of(env: &dyn Fn(&str) -> Option<String>) -> String {
    let host = env("CLICKHOUSE_HOST").unwrap_or_else(|| "127.0.0.1".to_owned());
    let host = if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host };
    match env("CLICKHOUSE_PORT") {
        Some(port) => format!("http://{host}:{port}"),
        None => format!("http://{host}"),
    }
}

/// A URL without its login, and the login.
struct Parts {
    url: String,
    user: Option<String>,
    password: Option<String>,
}

impl Parts {
    fn parse(text: &str) -> Result<Parts, Failure> {
        let (scheme, rest, default_port) = if let Some(rest) = text.strip_prefix("http://") {
            ("http", rest, 8123)
        } else if let Some(rest) = text.strip_prefix("https://") {
            ("https", rest, 8443)
        } else {
            return Err(bad("starts with neither http:// nor https://"));
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.contains(['/', '?', '#']) {
            return Err(bad("has a path or parameters").hint(
                "name the database as target.database, user and password before the host; a `/`, `?` or `#` in a \
                 password is written %2F, %3F or %23",
            ));
        }
        let (login, host) =
            authority.rsplit_once('@').map_or((None, authority), |(login, host)| (Some(login), host));
        let (user, password) = match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
            Some((user, password)) => (decoded(user, "user")?, decoded(password, "password")?),
            None => (None, None),
        };
        Ok(Parts { url: format!("{scheme}://{}", with_port(host, default_port)?), user, password })
    }
}

fn with_port(host: &str, default_port: u16) -> Result<String, Failure> {
    let name_end = host.rfind(']').map_or(0, |at| at + 1);
    let (name, port) = match host[name_end..].split_once(':') {
        Some((rest, port)) => (&host[..name_end + rest.len()], Some(port)),
        None => (host, None),
    };
    let is_bracketed = name.starts_with('[') && name.ends_with(']');
    if name.is_empty()
        || name.contains(char::is_whitespace)
        || (name.contains([':', '[', ']']) && !is_bracketed)
    {
        return Err(bad("has no valid host"));
    }
    match port.map(str::parse::<u16>) {
        None => Ok(format!("{name}:{default_port}")),
        Some(Ok(port @ 1..)) => Ok(format!("{name}:{port}")),
        Some(_) => Err(bad("has a port that is no number from 1 to 65535")),
    }
}

/// `None` when empty.
fn decoded(text: &str, part: &str) -> Result<Option<String>, Failure> {
    let text = percent_decode_str(text).decode_utf8();
    let text = text.map_err(|_| bad(&format!("has a bad percent-encoding in its {part}")))?;
    Ok(Some(text.into_owned()).filter(|text| !text.is_empty()))
}

fn bad(what: &str) -> Failure {
    Failure::config(format!("the target's URL {what}")).hint(FORM)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn with(text: Option<&str>, variables: &[(&str, &str)]) -> Result<TargetEndpoint> {
        let variables: HashMap<_, _> = variables.iter().copied().collect();
        TargetEndpoint::parse(text, None, &|name| variables.get(name).map(|value| (*value).to_owned()))
    }

    #[test]
    fn urls_without_their_login() {
        for (text, url, user, password) in [
            ("http://h", "http://h:8123", "default", None),
            ("https://h/", "https://h:8443", "default", None),
            ("http://u@h:1", "http://h:1", "u", None),
            ("http://u:p%40%2f@h:1", "http://h:1", "u", Some("p@/")),
            ("http://u:a@b@h:1", "http://h:1", "u", Some("a@b")),
            ("http://[::1]:9", "http://[::1]:9", "default", None),
            ("http://[::1]", "http://[::1]:8123", "default", None),
        ] {
            let target = with(Some(text), &[]).unwrap_or_else(|error| panic!("{text}: {error}"));
            let shown = target.password.as_ref().map(Secret::expose);
            assert_eq!((target.url.as_str(), target.user.as_str(), shown), (url, user, password), "{text}");
        }
    }

    #[test]
    fn environment_behind_the_text() {
        let variables = [
            ("CLICKHOUSE_HOST", "::1"),
            ("CLICKHOUSE_PORT", "9"),
            ("CLICKHOUSE_USER", "env"),
            ("CLICKHOUSE_PASSWORD", "secret"),
            ("CLICKHOUSE_DATABASE", "db"),
        ];
        let target = with(None, &variables).unwrap();
        assert_eq!((target.url.as_str(), target.user.as_str()), ("http://[::1]:9", "env"));
        assert_eq!((target.password, target.database.as_str()), (Some(Secret::new("secret")), "db"));
        let target = with(Some("http://u@h"), &variables).unwrap();
        assert_eq!((target.url.as_str(), target.user.as_str()), ("http://h:8123", "u"));
        let target = with(None, &[("CLICKHOUSE_URL", "https://u:p@h"), ("CLICKHOUSE_HOST", "x")]).unwrap();
        assert_eq!((target.url.as_str(), target.password), ("https://h:8443", Some(Secret::new("p"))));
        let target = with(None, &[]).unwrap();
        assert_eq!((target.url.as_str(), target.database.as_str()), ("http://127.0.0.1:8123", "cdcprobe"));
        let named = TargetEndpoint::parse(None, Some("mine"), &|_| Some("env".into())).unwrap_err();
        assert!(named.to_string().contains("http://"));
    }

    #[test]
    fn refusals_hold_no_password() {
        for text in [
            "clickhouse://u:canary@h",
            "http://u:canary@h/path",
            "http://h?password=canary",
            "http://u:canary@h:port",
            "http://u:canary@",
            "http://u:canary%ff@h",
            "http://u:can/canary@h",
            "http://u:canary@a:b:1",
        ] {
            let error = with(Some(text), &[]).expect_err(text);
            assert!(!format!("{error:?}").contains("canary"), "{text}: {error:?}");
        }
    }
}
