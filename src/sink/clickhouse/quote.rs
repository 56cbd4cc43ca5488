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

/// `` `database`.`view` `` of a source table's rows as they are now.
pub fn target_view(database: &str, table: &Table) -> String {
    format!("{}.{}", identifier(database), identifier(&view_name(&table.schema, &table.name)))
}

/// The name of the view of a table's rows as they are now.
pub fn view_name(schema: &str, name: &str) -> String {
    format!("{}{VIEW_SUFFIX}", table_name(schema, name))
}

/// What a view's name has after its table's.
pub const VIEW_SUFFIX: &str = "_current";

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
