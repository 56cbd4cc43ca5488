//! The statements that make room in ClickHouse, and what an existing table must look like. Pure.

use std::fmt::Write;

use super::{
    encode::{META_COLUMNS, ORDINAL_COLUMN, meta_columns},
    quote::{identifier, literal, table_name, target_table, target_view, view_name},
    types::{ColumnType, IS_NULL_SUFFIX, column_type},
};
use crate::{change::Table, failure::Failure};

/// The comment of a table or view that we made.
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
    let mut columns = Vec::with_capacity(table.columns.len() + META_COLUMNS.len() + 1);
    let mut add =
        |name: &str, type_name: String| columns.push(TargetColumn { name: name.to_owned(), type_name });
    for column in &table.columns {
        let column_type = column_type(column);
        add(&column.name, column_type.to_string());
        if matches!(column_type, ColumnType::Array { nullable: true, .. }) {
            add(&format!("{}{IS_NULL_SUFFIX}", column.name), "Bool".to_owned());
        }
    }
    for (name, type_name) in meta_columns(table) {
        add(name, type_name.to_owned());
    }
    let mut names: Vec<_> = columns.iter().map(|column| &column.name).collect();
    names.sort();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("column {} collides with a column that cdcprobe adds", pair[0])),
        None => Ok(columns),
    }
}

/// `create table if not exists`, sorted by the key, replaced by version; without a key sorted by what tells the changes
/// apart, so that a change which comes again takes its own place.
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
        ")\nengine = {}\norder by ({})\nsettings non_replicated_deduplication_window = 1000\ncomment {}",
        if table.has_key() { "ReplacingMergeTree(_lsn, _deleted)" } else { "ReplacingMergeTree(_lsn)" },
        sorting_key(table).into_iter().map(identifier).collect::<Vec<_>>().join(", "),
        literal(MARK)
    )
    .expect("a String takes it");
    Ok(sql)
}

/// The view `<table>_current`: the rows as they are now, without tombstones and without the columns that we add.
///
/// A nullable array keeps its `__is_null` companion: ClickHouse has no nullable arrays, so a view without it would show
/// NULL as `[]`. Made anew when it is there, because columns may have changed; only ever over a view of ours.
///
/// Without a key a row is there as often as it came more often than it went.
pub fn create_view(database: &str, table: &Table) -> Result<String, String> {
    let columns = target_columns(table)?;
    let is_meta = |name: &str| meta_columns(table).any(|(meta, _)| meta == name);
    let shown = columns.iter().filter(|column| !is_meta(&column.name)).map(|column| identifier(&column.name));
    let (shown, target) = (shown.collect::<Vec<_>>().join(", "), target_table(database, table));
    let rows = if table.has_key() {
        format!("select {shown}\nfrom {target} final\nwhere _deleted = 0")
    } else {
        format!(
            "select {shown}\nfrom\n(\n    select {shown}, sum(if(_deleted = 0, 1, -1)) as _cdcprobe_count\n    from {target} final\n    \
             group by {shown}\n    having _cdcprobe_count > 0\n)\narray join range(toUInt64(_cdcprobe_count)) as _cdcprobe_copy"
        )
    };
    Ok(format!(
        "create or replace view {} as\n{rows}\ncomment {}",
        target_view(database, table),
        literal(MARK)
    ))
}

/// The key's column names in key order; without a key, what tells changes apart.
pub fn sorting_key(table: &Table) -> Vec<&str> {
    if !table.has_key() {
        return vec![META_COLUMNS[0].0, ORDINAL_COLUMN.0];
    }
    table.key().into_iter().map(|column| column.name.as_str()).collect()
}

/// What an existing table is, for [`differences`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExistingTable {
    pub engine: String,
    /// It carries our mark.
    pub is_ours: bool,
    pub rows: u64,
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

/// What stands where a table's rows, and its view, are to go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub table: Option<ExistingTable>,
    /// Something has the view's name; whether it is a view that carries our mark.
    pub view_is_ours: Option<bool>,
}

impl Place {
    /// A table that somebody else made gets no view from us.
    pub fn takes_view(&self, views: bool) -> bool {
        views && self.table.as_ref().is_none_or(|table| table.is_ours)
    }
}

/// Everything that keeps a table's rows from going to their place.
pub fn failures(database: &str, table: &Table, place: &Place, views: bool) -> Vec<Failure> {
    let mut found: Vec<Failure> =
        target_columns(table).err().iter().map(|why| impossible(table, why)).collect();
    if let Some(existing) = &place.table
        && let Ok(differences) = differences(table, existing)
        && !differences.is_empty()
    {
        let name = table_name(&table.schema, &table.name);
        let message =
            format!("{name} exists in ClickHouse but cannot take {table}: {}", differences.join("; "));
        found.push(
            Failure::environment(message)
                .hint("drop or rename that table, or choose another target.database"),
        );
    }
    if place.takes_view(views) && place.view_is_ours == Some(false) {
        let name = view_name(&table.schema, &table.name);
        let message = format!(
            "{name} exists in ClickHouse's database {database}, where {table} would get its view, and is no view that \
             cdcprobe made"
        );
        found.push(Failure::environment(message).hint(
            "rename that object, choose another target.database, or do without views: target.views = false",
        ));
    }
    found
}

pub fn impossible(table: &Table, why: &str) -> Failure {
    Failure::config(format!("table {table}: {why}"))
        .hint("rename the column, or leave the table out of source.tables")
}

/// Two source tables must not become one target table, nor one's table the other's view.
pub fn collisions(tables: &[Table], views: bool) -> Vec<Failure> {
    let table = |table: &Table| table_name(&table.schema, &table.name);
    let mut found = Vec::new();
    for (index, one) in tables.iter().enumerate() {
        for other in &tables[index + 1..] {
            if table(one) == table(other) {
                let message =
                    format!("tables {one} and {other} would both become {} in ClickHouse", table(one));
                found.push(Failure::config(message).hint("leave one of them out of source.tables"));
            }
        }
        for other in tables.iter().filter(|_| views) {
            if view_name(&one.schema, &one.name) == table(other) {
                let message = format!(
                    "the view of table {one} and the table {other} would both become {} in ClickHouse",
                    table(other)
                );
                found.push(Failure::config(message).hint(
                    "leave one of them out of source.tables, or do without views: target.views = false",
                ));
            }
        }
    }
    found
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
    fn the_view_shows_the_sources_columns_and_no_tombstones() {
        let sql = create_view("d`b", &table()).unwrap();
        assert_eq!(
            sql,
            "create or replace view `d\\`b`.`app.it\\`em_current` as\nselect `b`, `a`, `tags`, `tags__is_null`\n\
             from `d\\`b`.`app.it\\`em` final\nwhere _deleted = 0\ncomment 'made by cdcprobe'"
        );
    }

    #[test]
    fn what_has_the_views_name_is_refused_unless_it_is_ours_or_no_view_is_made() {
        let table = table();
        let existing = |is_ours| ExistingTable {
            engine: "ReplacingMergeTree".to_owned(),
            is_ours,
            rows: 0,
            sorting_key: vec!["a".to_owned(), "b".to_owned()],
            columns: target_columns(&table).unwrap(),
        };
        for (place, views, refused) in [
            (Place::default(), true, false),
            (Place { table: None, view_is_ours: Some(true) }, true, false),
            (Place { table: None, view_is_ours: Some(false) }, true, true),
            (Place { table: None, view_is_ours: Some(false) }, false, false),
            (Place { table: Some(existing(true)), view_is_ours: Some(false) }, true, true),
            (Place { table: Some(existing(false)), view_is_ours: Some(false) }, true, false),
        ] {
            let found = failures("db", &table, &place, views);
            assert_eq!(!found.is_empty(), refused, "{place:?} {views}: {found:?}");
            assert!(found.iter().all(|failure| failure.message.contains("app.it`em_current")));
        }
    }

    #[test]
    fn names_that_meet_in_the_target_are_all_told() {
        let named =
            |schema: &str, name: &str| Table { schema: schema.to_owned(), name: name.to_owned(), ..table() };
        let tables =
            [named("public", "a.b"), named("a", "b"), named("public", "x"), named("public", "x_current")];
        assert_eq!(collisions(&tables, true).len(), 2);
        assert!(collisions(&tables, true)[1].message.contains("view of table public.x"));
        assert_eq!(collisions(&tables, false).len(), 1);
    }

    #[test]
    fn an_existing_table_is_compared_column_by_column() {
        let table = table();
        let mut existing = ExistingTable {
            engine: "ReplacingMergeTree".to_owned(),
            is_ours: false,
            rows: 0,
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
