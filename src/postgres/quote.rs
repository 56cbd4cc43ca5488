//! PostgreSQL identifiers and literals. Values in SQL are parameters; these are for names, and for the replication
//! commands and COPY, which take no parameters.
//!
//! The same double quotes serve the replication grammar (slot, plugin and option names). Hazard: PostgreSQL knows no
//! zero byte in either; no string from a server holds one, and the frontend refuses to send one.

use crate::config::TableName;

/// `"name"`, always quoted: keywords, capitals and blanks are all safe.
pub fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// `'value'`, or ` E'…'` when it holds a backslash: right whatever `standard_conforming_strings` says.
///
/// The replication grammar knows no `E'…'`; use [`replication_literal`] there.
pub fn literal(value: &str) -> String {
    let quoted = value.replace('\'', "''");
    if value.contains('\\') { format!(" E'{}'", quoted.replace('\\', "\\\\")) } else { format!("'{quoted}'") }
}

/// `'value'` for option values of replication commands, whose scanner takes a backslash as it is.
pub fn replication_literal(value: &str) -> String {
    format!("'{}'", value.replace('\'', "''"))
}

/// `"schema"."name"`.
pub fn qualified(table: &TableName) -> String {
    format!("{}.{}", identifier(&table.schema), identifier(&table.name))
}

/// `"a", "b"`: the list form of `publication_names`, itself to be put through [`replication_literal`].
pub fn identifier_list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(identifier).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What the server's scanner makes of a quoted token: the text, if the token ends exactly at its end.
    fn unquoted(token: &str, quote: char, backslash: bool) -> Option<String> {
        let inner = token.strip_prefix(quote)?.strip_suffix(quote)?;
        let mut text = String::new();
        let mut chars = inner.chars();
        while let Some(c) = chars.next() {
            text.push(match c {
                _ if c == quote => chars.next().filter(|&next| next == quote)?,
                '\\' if backslash => chars.next().filter(|&next| next == '\\')?,
                _ => c,
            });
        }
        Some(text)
    }

    #[test]
    fn hostile_names() {
        assert_eq!(identifier(r#"a"; drop table x; --"#), r#""a""; drop table x; --""#);
        assert_eq!(literal("it's"), "'it''s'");
        assert_eq!(literal(r"\'"), r" E'\\'''");
        assert_eq!(qualified(&TableName::new("Public", "t\"1")), r#""Public"."t""1""#);
        assert_eq!(replication_literal(&identifier_list(["a", "b'c"])), r#"'"a", "b''c"'"#);
    }

    proptest! {
        #[test]
        fn identifiers_read_back(name in any::<String>()) {
            prop_assert_eq!(unquoted(&identifier(&name), '"', false), Some(name));
        }

        #[test]
        fn literals_read_back(value in r#"[a'"\\ ;]{0,20}"#) {
            let token = literal(&value);
            let back = match token.strip_prefix(" E") {
                Some(token) => unquoted(token, '\'', true),
                None => unquoted(&token, '\'', false),
            };
            prop_assert_eq!(back, Some(value));
        }

        #[test]
        fn replication_literals_read_back(value in any::<String>()) {
            prop_assert_eq!(unquoted(&replication_literal(&value), '\'', false), Some(value));
        }
    }
}
