//! libpq's two forms of a connection string, taken apart into named parameters; nothing is interpreted here.
//!
//! Source: PostgreSQL manual, "Connection Strings". Errors name positions and parameters, never values: any of them
//! may be, or hold, a password.

use percent_encoding::percent_decode_str;

/// Name and value, in order of appearance; of equal names the last one counts.
pub type Parameters = Vec<(String, String)>;

/// What is wrong with a connection string, without quoting it.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum Malformed {
    #[error("neither a postgres:// URL nor key=value pairs")]
    NoForm,
    #[error("a bad percent-encoding in its {0}")]
    Percent(&'static str),
    #[error("an IPv6 address without its closing bracket")]
    Bracket,
    #[error("something other than `:port` behind an IPv6 address")]
    AfterBracket,
    #[error("a parameter without `=`; a value with blanks in it is quoted, in a URL percent-encoded")]
    NoValue,
    #[error("an `@` behind the first `/`; in a password `/` is written %2F, in a database name `@` is %40")]
    At,
    #[error("the value of `{0}` has a quote that is not closed")]
    Quote(String),
    #[error("a parameter without a name")]
    NoName,
}

pub fn parse(text: &str) -> Result<Parameters, Malformed> {
    let scheme = ["postgres://", "postgresql://"].into_iter().find_map(|scheme| text.strip_prefix(scheme));
    match scheme {
        Some(rest) => url(rest),
        None if text.contains('=') || text.trim().is_empty() => key_values(text),
        None => Err(Malformed::NoForm),
    }
}

/// `[user[:password]@][host[:port],…][/database][?name=value&…]`
fn url(rest: &str) -> Result<Parameters, Malformed> {
    let mut parameters = Parameters::new();
    // The login ends at the first `@`, unless a `/` comes before it: a `?` in a password may stand as it is.
    let login_end = rest.find(['@', '/']).filter(|&at| rest.as_bytes()[at] == b'@');
    let (login, rest) = login_end.map_or(("", rest), |at| (&rest[..at], &rest[at + 1..]));
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
    let (hosts, database) = rest.split_once('/').unwrap_or((rest, ""));
    if database.contains('@') {
        return Err(Malformed::At);
    }
    let (hosts, ports) = host_list(hosts)?;
    for (name, value) in
        [("user", user), ("password", password), ("host", &hosts), ("port", &ports), ("dbname", database)]
    {
        if !value.is_empty() {
            parameters.push((name.to_owned(), decoded(value, name_of_part(name))?));
        }
    }
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or(Malformed::NoValue)?;
        let (name, value) = (decoded(name, "parameters")?, decoded(value, "parameters")?);
        parameters.push(if (name.as_str(), value.as_str()) == ("ssl", "true") {
            // What JDBC's URLs say; libpq takes it as well.
            ("sslmode".to_owned(), "require".to_owned())
        } else {
            (name, value)
        });
    }
    Ok(parameters)
}

fn name_of_part(name: &str) -> &'static str {
    match name {
        "user" => "user",
        "password" => "password",
        "dbname" => "database",
        _ => "hosts",
    }
}

/// `a:1,[::1]:2` as `a,::1` and `1,2`.
fn host_list(text: &str) -> Result<(String, String), Malformed> {
    let mut hosts = Vec::new();
    let mut ports = Vec::new();
    for part in text.split(',') {
        let (host, port) = match part.strip_prefix('[') {
            Some(rest) => {
                let (host, after) = rest.split_once(']').ok_or(Malformed::Bracket)?;
                let port = if after.is_empty() { Some("") } else { after.strip_prefix(':') };
                (host, port.ok_or(Malformed::AfterBracket)?)
            }
            None => part.split_once(':').unwrap_or((part, "")),
        };
        hosts.push(host);
        ports.push(port);
    }
    let list = |items: Vec<&str>| {
        if items.iter().all(|item| item.is_empty()) { String::new() } else { items.join(",") }
    };
    Ok((list(hosts), list(ports)))
}

fn decoded(text: &str, part: &'static str) -> Result<String, Malformed> {
    let bad = Malformed::Percent(part);
    let bytes = text.as_bytes();
    let is_broken = |(at, _): (usize, &u8)| {
        !bytes.get(at + 1..at + 3).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit))
    };
    if bytes.iter().enumerate().filter(|(_, byte)| **byte == b'%').any(is_broken) {
        return Err(bad);
    }
    match percent_decode_str(text).decode_utf8() {
        Ok(text) if !text.contains('\0') => Ok(text.into_owned()),
        _ => Err(bad),
    }
}

/// `name = value name='quoted value'`, a backslash before a quote or a backslash.
fn key_values(text: &str) -> Result<Parameters, Malformed> {
    let mut parameters = Parameters::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let end = rest.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        if name.is_empty() {
            return Err(Malformed::NoName);
        }
        let value = after.trim_start().strip_prefix('=').ok_or(Malformed::NoValue)?;
        let (value, after) = value_of(name, value.trim_start())?;
        parameters.push((name.to_owned(), value));
        rest = after.trim_start();
    }
    Ok(parameters)
}

/// The value at the start of `text`, and what follows it.
fn value_of<'a>(name: &str, text: &'a str) -> Result<(String, &'a str), Malformed> {
    let quoted = text.strip_prefix('\'');
    let body = quoted.unwrap_or(text);
    let mut value = String::new();
    let mut chars = body.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => value.extend(chars.next().map(|(_, c)| c)),
            '\'' if quoted.is_some() => return Ok((value, &body[at + 1..])),
            c if quoted.is_none() && c.is_whitespace() => return Ok((value, &body[at..])),
            c => value.push(c),
        }
    }
    if quoted.is_some() { Err(Malformed::Quote(name.to_owned())) } else { Ok((value, "")) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Vec<(String, String)> {
        parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn pairs(expected: &[(&str, &str)]) -> Parameters {
        expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn urls() {
        for (text, expected) in [
            ("postgres://", &[][..]),
            ("postgresql://localhost", &[("host", "localhost")]),
            ("postgresql:///db", &[("dbname", "db")]),
            ("postgres://u@h:5433/d", &[("user", "u"), ("host", "h"), ("port", "5433"), ("dbname", "d")]),
            ("postgres://u:p%40%2F%3A@h", &[("user", "u"), ("password", "p@/:"), ("host", "h")]),
            ("postgres://a:1,b,[::1]:3/d", &[("host", "a,b,::1"), ("port", "1,,3"), ("dbname", "d")]),
            ("postgres://u:p?q@h", &[("user", "u"), ("password", "p?q"), ("host", "h")]),
            ("postgres://%2Fvar%2Frun/d", &[("host", "/var/run"), ("dbname", "d")]),
            ("postgres:///d?host=/tmp&port=6", &[("dbname", "d"), ("host", "/tmp"), ("port", "6")]),
            ("postgres://h?ssl=true", &[("host", "h"), ("sslmode", "require")]),
            (
                "postgres://h/a%20b?sslrootcert=%2Fa+b",
                &[("host", "h"), ("dbname", "a b"), ("sslrootcert", "/a+b")],
            ),
        ] {
            assert_eq!(parsed(text), pairs(expected), "{text}");
        }
    }

    #[test]
    fn key_value_pairs() {
        for (text, expected) in [
            ("", &[][..]),
            ("host=a port = 5 dbname= d", &[("host", "a"), ("port", "5"), ("dbname", "d")]),
            (r"password='it\'s \\ here' user=u", &[("password", r"it's \ here"), ("user", "u")]),
            (r"password=a\ b", &[("password", "a b")]),
            ("password='' user=u", &[("password", ""), ("user", "u")]),
            ("password=a=b", &[("password", "a=b")]),
        ] {
            assert_eq!(parsed(text), pairs(expected), "{text}");
        }
    }

    #[test]
    fn malformed() {
        for (text, error) in [
            ("localhost", Malformed::NoForm),
            ("postgres://u:p%4@h", Malformed::Percent("password")),
            ("postgres://%00@h", Malformed::Percent("user")),
            ("postgres://h%ff", Malformed::Percent("hosts")),
            ("postgres://[::1", Malformed::Bracket),
            ("postgres://[::1]5", Malformed::AfterBracket),
            ("postgres://h?sslmode", Malformed::NoValue),
            ("host=a port", Malformed::NoValue),
            ("postgres://u:12/3@h", Malformed::At),
            ("=a", Malformed::NoName),
            ("password='abc", Malformed::Quote("password".into())),
        ] {
            assert_eq!(parse(text), Err(error), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_password_comes_back(password in "[^\0]{1,20}", user in "[^\0]{1,9}") {
            let encoded = |text: &str| percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string();
            let text = format!("postgres://{}:{}@h/d", encoded(&user), encoded(&password));
            let expected = pairs(&[("user", &user), ("password", &password), ("host", "h"), ("dbname", "d")]);
            prop_assert_eq!(parse(&text), Ok(expected));

            let quoted = password.replace('\\', r"\\").replace('\'', r"\'");
            let text = format!("host=h password='{quoted}'");
            prop_assert_eq!(parse(&text), Ok(pairs(&[("host", "h"), ("password", &password)])));
        }

        #[test]
        fn nothing_panics(text in "(postgres://)?[a-z%:/@?&=,'\\[\\] \\\\é]{0,30}") {
            let _ = parse(&text);
        }
    }
}
