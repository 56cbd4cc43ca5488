//! What the two servers say of a table: columns, key, engine.

use anyhow::{Context, Result};
use clickhouse::Client as Target;
use tokio_postgres::Client as Source;

use super::{
    TablePair,
    compare::{ColumnLayout, Layout},
    order::KeyOrder,
    projection::{Projection, TargetColumn, project},
};
use crate::{
    change::BaseType,
    config::TableName,
    failure::{Failure, Kind},
    postgres::types::Types,
    sink::clickhouse::quote::identifier,
};

/// A source column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    pub name: String,
    pub base: BaseType,
}

/// A source table's columns and its key, by index into them.
struct SourceShape {
    columns: Vec<Column>,
    is_generated: Vec<bool>,
    /// Empty: rows are compared as a whole.
    key: Vec<usize>,
}

/// A target table's columns and whether it must be read with FINAL.
struct TargetShape {
    /// Name and type.
    columns: Vec<(String, String)>,
    is_final: bool,
}

/// Everything that is needed to read both sides of one table.
#[derive(Clone, Debug)]
pub struct Plan {
    pub projections: Vec<Projection>,
    pub layout: Layout,
    pub is_final: bool,
    /// The target's column of tombstones, where it has one.
    pub deleted_column: Option<String>,
    /// Where there is no key: both sides' expression of a whole row's hash, by which rows are sorted and told apart, and
    /// the target's columns that make up a row.
    pub whole_row: Option<WholeRow>,
}

/// How rows without a key are compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeRow {
    pub source_hash: String,
    pub target_hash: String,
    /// Quoted; an array's companion too.
    pub target_columns: Vec<String>,
}

impl Plan {
    /// Asks both servers.
    ///
    /// Errors: a configuration failure for a source table that is not there or has no key; a broken invariant for a
    /// target that lacks the table or a column, or holds one in a type that cannot be compared.
    pub async fn of(
        source: &Source,
        target: &Target,
        pair: &TablePair,
        deleted_column: &str,
    ) -> Result<Self> {
        let (source, target) = (source_shape(source, &pair.source).await?, target_shape(target, pair).await?);
        let has = |name: &str| target.columns.iter().any(|(column, _)| column == name);
        let (mut projections, mut columns, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for (column, &is_generated) in source.columns.iter().zip(&source.is_generated) {
            // Generated columns are published only on request.
            if is_generated && !has(&column.name) {
                places.push(None);
                continue;
            }
            let projection = project_column(column, &target, pair)?;
            places.push(Some(columns.len()));
            columns.push(ColumnLayout { name: column.name.clone(), is_float: projection.is_float });
            projections.push(projection);
        }
        let place = |index: &usize| {
            let place = places[*index].with_context(|| {
                let column = &source.columns[*index].name;
                format!("table {}: key column {column} is not in the target", pair.source)
            })?;
            anyhow::Ok((place, projections[place].order))
        };
        let mut key: Vec<_> = source.key.iter().map(place).collect::<Result<_>>()?;
        let deleted_column = has(deleted_column).then(|| deleted_column.to_owned());
        let whole_row = key.is_empty().then(|| WholeRow::of(&projections, &columns, &target));
        let shown = if whole_row.is_some() {
            columns.insert(0, ColumnLayout { name: "(hash)".to_owned(), is_float: false });
            key.push((0, KeyOrder::Bytes));
            (1..columns.len()).collect()
        } else {
            key.iter().map(|(index, _)| *index).collect()
        };
        let layout = Layout { columns, key, shown };
        Ok(Plan { layout, projections, is_final: target.is_final, deleted_column, whole_row })
    }
}

impl WholeRow {
    /// Each column's text behind its length, NULL apart from all texts.
    fn of(projections: &[Projection], columns: &[ColumnLayout], target: &TargetShape) -> WholeRow {
        let source = projections.iter().map(|projection| {
            let text = format!("concat({})", projection.source);
            format!(
                "case when ({}) is null then '-' else octet_length({text}) || ':' || {text} end",
                projection.source
            )
        });
        let target_texts = projections.iter().map(|projection| {
            let text = format!("CAST({} AS Nullable(String))", projection.target);
            format!("ifNull(concat(toString(length({text})), ':', {text}), '-')")
        });
        let is_shown = |name: &str| {
            columns.iter().any(|column| {
                name == column.name
                    || name.strip_suffix("__is_null").is_some_and(|array| array == column.name)
            })
        };
        let names = target.columns.iter().map(|(name, _)| name.as_str()).filter(|name| is_shown(name));
        WholeRow {
            source_hash: format!("md5({})", source.collect::<Vec<_>>().join(" || ")),
            target_hash: format!(
                "lower(hex(MD5(concat({}, ''))))",
                target_texts.collect::<Vec<_>>().join(", ")
            ),
            target_columns: names.map(identifier).collect(),
        }
    }
}

fn project_column(column: &Column, target: &TargetShape, pair: &TablePair) -> Result<Projection> {
    let find = |name: &str| target.columns.iter().find(|(known, _)| known == name);
    let Some((name, type_name)) = find(&column.name) else {
        let message = format!("{} has no column {}, which {} has", pair.target(), column.name, pair.source);
        return Err(Failure::new(Kind::Invariant, message).into());
    };
    let companion = find(&format!("{}__is_null", column.name)).map(|(name, _)| name.as_str());
    let target = TargetColumn { name, type_name, is_null_companion: companion };
    project(column, target).with_context(|| format!("compare table {} with {}", pair.source, pair.target()))
}

async fn source_shape(client: &Source, table: &TableName) -> Result<SourceShape> {
    let rows = client
        .query(include_str!("sql/columns.sql"), &[&table.schema, &table.name])
        .await
        .with_context(|| format!("read the columns of {table}"))?;
    if rows.is_empty() {
        let failure = Failure::config(format!("there is no table {table} in the source"));
        return Err(failure
            .hint("check schema and name; both are taken as written, capitals included")
            .into());
    }
    let types = Types::read(client).await?;
    let (mut columns, mut is_generated, mut key) = (Vec::new(), Vec::new(), Vec::new());
    for (index, row) in rows.iter().enumerate() {
        let base = types.resolve(row.try_get("type_oid")?, row.try_get("typmod")?);
        columns.push(Column { name: row.try_get("name")?, base });
        is_generated.push(row.try_get("is_generated")?);
        if let Some(place) = row.try_get::<_, Option<i32>>("key_place")? {
            key.push((place, index));
        }
    }
    key.sort_unstable();
    Ok(SourceShape { columns, is_generated, key: key.into_iter().map(|(_, index)| index).collect() })
}

async fn target_shape(client: &Target, pair: &TablePair) -> Result<TargetShape> {
    let query = |sql: &str| client.query(sql).bind(&pair.target_database).bind(&pair.target_table);
    let engine: Option<String> = query(include_str!("sql/target_engine.sql"))
        .fetch_optional()
        .await
        .with_context(|| format!("look for {} in the target", pair.target()))?;
    let Some(engine) = engine else {
        let message = format!("there is no table {} in the target", pair.target());
        return Err(Failure::new(Kind::Invariant, message).into());
    };
    let columns = query(include_str!("sql/target_columns.sql"))
        .fetch_all::<(String, String)>()
        .await
        .with_context(|| format!("read the columns of {}", pair.target()))?;
    // Every other engine refuses FINAL.
    let is_final = ["Replacing", "Collapsing", "Summing", "Aggregating", "Coalescing"]
        .iter()
        .any(|merging| engine.contains(merging));
    Ok(TargetShape { columns, is_final })
}
