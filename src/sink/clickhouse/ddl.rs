//! The statements that make room in ClickHouse, and what an existing table must look like. Pure.

use std::fmt::Write;

use super::{
    encode::META_COLUMNS,
    quote::{identifier, literal, target_table},
    types::{ColumnType, IS_NULL_SUFFIX, column_type},
};
use crate::change::Table;

/// The comment of a table that we made.
pub const MARK: &str = "made by cdcprobe";

pub const CHECKPOINT_TABLE: &str = "_cdcprobe_checkpoint";

/// A column of a target table: name and type as `system.columns` shows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetColumn {
    pub name: String,
    pub type_name: String,
}

/// What a target table consists of, in order; errors name a column that cannot have its name there.
pub fn target_columns(table: &Table) -> Result<Vec<TargetColumn>, String> {
    let mut columns = Vec::with_capacity(table.columns.len() + META_COLUMNS.len());
    let mut add =
        |name: &str, type_name: String| columns.push(TargetColumn { name: name.to_owned(), type_name });
    for column in &table.columns {
        let column_type = column_type(column);
        add(&column.name, column_type.to_string());
        if matches!(column_type, ColumnType::Array { nullable: true, .. }) {
            add(&format!("{}{IS_NULL_SUFFIX}", column.name), "Bool".to_owned());
        }
    }
    for (name, type_name) in META_COLUMNS {
        add(name, type_name.to_owned());
    }
    let mut names: Vec<_> = columns.iter().map(|column| &column.name).collect();
    names.sort();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("column {} collides with a column that cdcprobe adds", pair[0])),
        None => Ok(columns),
    }
}

/// `create table if not exists`, sorted by the key, replaced by version.
pub fn create_table(database: &str, table: &Table) -> Result<String, String> {
    let mut sql = format!("create table if not exists {}\n(\n", target_table(database, table));
    let columns = target_columns(table)?;
    for (index, column) in columns.iter().enumerate() {
        let comma = if index + 1 < columns.len() { "," } else { "" };
        writeln!(sql, "    {} {}{comma}", identifier(&column.name), column.type_name)
            .expect("a String takes it");
    }
    write!(
        sql,
        ")\nengine = ReplacingMergeTree(_lsn, _deleted)\norder by ({})\nsettings non_replicated_deduplication_window = 1000\ncomment {}",
        sorting_key(table).into_iter().map(identifier).collect::<Vec<_>>().join(", "),
        literal(MARK)
    )
    .expect("a String takes it");
    Ok(sql)
}

/// The key's column names in key order.
pub fn sorting_key(table: &Table) -> Vec<&str> {
    table.key().into_iter().map(|column| column.name.as_str()).collect()
}

/// What an existing table is, for [`differences`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExistingTable {
    pub engine: String,
    pub sorting_key: Vec<String>,
    pub columns: Vec<TargetColumn>,
}

/// Why an existing table cannot take the rows; empty when it can.
pub fn differences(table: &Table, existing: &ExistingTable) -> Result<Vec<String>, String> {
    let wanted = target_columns(table)?;
    let mut found = Vec::new();
    if !existing.engine.contains("ReplacingMergeTree") {
        found.push(format!("its engine is {}, not ReplacingMergeTree", existing.engine));
    }
    let key = sorting_key(table);
    if existing.sorting_key != key {
        found.push(format!(
            "it is sorted by ({}), not by ({})",
            existing.sorting_key.join(", "),
            key.join(", ")
        ));
    }
    for column in &wanted {
        match existing.columns.iter().find(|other| other.name == column.name) {
            None => found.push(format!("it lacks {} {}", column.name, column.type_name)),
            Some(other) if other.type_name != column.type_name => {
                found.push(format!("{} is {}, not {}", column.name, other.type_name, column.type_name));
            }
            Some(_) => {}
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        change::{BaseType, Identity, Misfit, RelationId, TableColumn},
        postgres::oid,
    };

    fn table() -> Table {
        let column = |name: &str, type_oid, key_position: Option<u16>| TableColumn {
            name: name.to_owned(),
            type_oid,
            typmod: -1,
            type_name: "weird".to_owned(),
            not_null: key_position.is_some(),
            base: match type_oid {
                oid::TEXT_ARRAY => BaseType::array(type_oid, oid::TEXT),
                _ => BaseType::scalar(type_oid, -1),
            },
            is_binary: true,
            as_text: false,
            misfit: Misfit::Fail,
            shape_misfit: Misfit::Fail,
            key_position,
        };
        Table {
            id: RelationId(1),
            schema: "app".to_owned(),
            name: "it`em".to_owned(),
            identity: Identity::Default,
            columns: vec![column("b", 23, Some(1)), column("a", 25, Some(0)), column("tags", 1009, None)],
        }
    }

    #[test]
    fn the_key_orders_the_table() {
        let sql = create_table("db", &table()).unwrap();
        assert!(
            sql.starts_with("create table if not exists `db`.`app.it\\`em`\n(\n    `b` Int32,\n"),
            "{sql}"
        );
        assert!(sql.contains("order by (`a`, `b`)"), "{sql}");
        assert!(sql.contains("`tags__is_null` Bool,"), "{sql}");
    }

    #[test]
    fn an_existing_table_is_compared_column_by_column() {
        let table = table();
        let mut existing = ExistingTable {
            engine: "ReplacingMergeTree".to_owned(),
            sorting_key: vec!["a".to_owned(), "b".to_owned()],
            columns: target_columns(&table).unwrap(),
        };
        assert_eq!(differences(&table, &existing), Ok(vec![]));
        existing.columns[0].type_name = "Int16".to_owned();
        existing.columns.remove(1);
        existing.sorting_key.pop();
        assert_eq!(differences(&table, &existing).unwrap().len(), 3);
    }

    #[test]
    fn collisions_are_named() {
        let mut table = table();
        table.columns[0].name = "_lsn".to_owned();
        assert!(target_columns(&table).unwrap_err().contains("_lsn collides"));
    }
}
