//! ClickHouse's identifiers and string literals, quoted in one place.

use crate::change::Table;

/// `` `name` ``, with backslashes and backquotes escaped.
pub fn identifier(name: &str) -> String {
    quoted(name, '`')
}

/// `'text'`, with backslashes and quotes escaped.
pub fn literal(text: &str) -> String {
    quoted(text, '\'')
}

fn quoted(text: &str, quote: char) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push(quote);
    for character in text.chars() {
        if character == quote || character == '\\' {
            out.push('\\');
        }
        out.push(character);
    }
    out.push(quote);
    out
}

/// The target's name of a source table: tables of `public` keep their own, the others become `schema.table`.
pub fn table_name(schema: &str, name: &str) -> String {
    if schema == "public" { name.to_owned() } else { format!("{schema}.{name}") }
}

/// `` `database`.`table` `` of a source table.
pub fn target_table(database: &str, table: &Table) -> String {
    format!("{}.{}", identifier(database), identifier(&table_name(&table.schema, &table.name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_breaks_out() {
        assert_eq!(identifier(r#"a`b\"#), r#"`a\`b\\`"#);
        assert_eq!(literal(r"it's \"), r"'it\'s \\'");
        assert_eq!(identifier(r#"x"; drop table x; --"#), r#"`x"; drop table x; --`"#);
    }
}
