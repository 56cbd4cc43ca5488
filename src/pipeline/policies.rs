//! The pipeline file's `[values]`, laid upon the tables: what each column does with a value that has no place. Pure.

use crate::{
    change::{Misfit, TableColumn},
    config::{TableName, ValuePolicies, ValuePolicy},
    failure::Failure,
    postgres::{catalog::SizedTable, oid},
};

/// A kind of value that may have no place in the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Date,
    Timestamp,
    Numeric,
}

/// Sets every column's policies.
///
/// Errors: a policy for a column that is not there, or that the column cannot follow.
pub fn apply(policies: &ValuePolicies, tables: &mut [SizedTable]) -> Result<(), Failure> {
    for (table, column) in policies.columns.keys() {
        let found = tables.iter().find(|sized| name_of(sized) == *table);
        // A policy of a table that this pipe leaves out is for another one.
        if found.is_some_and(|sized| sized.table.columns.iter().all(|known| known.name != *column)) {
            return Err(Failure::config(format!(
                "values.columns names {column}, which {table} does not have"
            ))
            .hint("check the name: schema.table.column, quoted as in SQL"));
        }
    }
    for sized in tables {
        let table = name_of(sized);
        for column in &mut sized.table.columns {
            let own = policies.columns.get(&(table.clone(), column.name.clone())).copied();
            apply_to(policies, own, &table, column)?;
        }
    }
    Ok(())
}

fn name_of(sized: &SizedTable) -> TableName {
    TableName::new(&sized.table.schema, &sized.table.name)
}

fn apply_to(
    policies: &ValuePolicies,
    own: Option<ValuePolicy>,
    table: &TableName,
    column: &mut TableColumn,
) -> Result<(), Failure> {
    let refused = |why: &str| {
        Failure::config(format!("values.columns: column {} of {table} {why}", column.name))
            .hint("choose another policy for it: fail or string")
    };
    let kind = kind(column);
    let is_array = column.base.element.is_some();
    let by_kind = kind.map(|kind| match kind {
        Kind::Date => policies.date,
        Kind::Timestamp => policies.timestamp,
        Kind::Numeric => policies.numeric,
    });
    let shape = is_array.then_some(policies.array);
    match own {
        Some(ValuePolicy::Clamp) if !matches!(kind, Some(Kind::Date | Kind::Timestamp)) => {
            return Err(refused("cannot be clamped: it is no date and no timestamp"));
        }
        Some(ValuePolicy::String) if column.base.oid == oid::BYTEA => {
            return Err(refused("is a String already, of its raw bytes"));
        }
        Some(ValuePolicy::Null) if column.key_position.is_some() => {
            return Err(refused("is in the key, which has no NULL"));
        }
        _ => {}
    }
    let value = own.or(by_kind).unwrap_or_default();
    let shape = match own {
        Some(ValuePolicy::Clamp) | None => shape.unwrap_or_default(),
        Some(own) => own,
    };
    if value == ValuePolicy::String || shape == ValuePolicy::String {
        (column.as_text, column.is_binary) = (true, false);
        return Ok(());
    }
    column.misfit = if kind.is_some() { misfit(value, column) } else { Misfit::Fail };
    column.shape_misfit = if is_array { misfit(shape, column) } else { Misfit::Fail };
    Ok(())
}

/// A key's column cannot follow a default of NULL: it fails.
fn misfit(policy: ValuePolicy, column: &TableColumn) -> Misfit {
    match policy {
        ValuePolicy::Null if column.key_position.is_none() => Misfit::Null,
        ValuePolicy::Clamp => Misfit::Clamp,
        _ => Misfit::Fail,
    }
}

/// Of the column's values, or its elements; `None` where every value has a place.
fn kind(column: &TableColumn) -> Option<Kind> {
    match column.base.element.map_or(column.base.oid, |element| element.oid) {
        oid::DATE => Some(Kind::Date),
        oid::TIMESTAMP | oid::TIMESTAMPTZ => Some(Kind::Timestamp),
        oid::NUMERIC if column.base.typmod >= 4 => Some(Kind::Numeric),
        _ => None,
    }
}

/// What becomes of the column's values that have no place in the target; `None` where every value has one.
pub fn consequence(column: &TableColumn) -> Option<String> {
    if column.as_text {
        return Some("PostgreSQL's text, as [values] says".to_owned());
    }
    let values = kind(column).map(|kind| {
        let which = match kind {
            Kind::Date => "infinity and years outside 1 to 9999",
            Kind::Timestamp => "infinity and years outside 0 to 9999",
            Kind::Numeric => "NaN and infinity",
        };
        format!("{which}: {}", name(column.misfit))
    });
    let shape = column
        .base
        .element
        .map(|_| format!("several dimensions or lower bounds other than 1: {}", name(column.shape_misfit)));
    let all: Vec<String> = values.into_iter().chain(shape).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

fn name(misfit: Misfit) -> &'static str {
    match misfit {
        Misfit::Fail => "fail",
        Misfit::Null => "null",
        Misfit::Clamp => "clamp",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::{BaseType, Identity, RelationId, Table};

    fn column(name: &str, base: BaseType, key_position: Option<u16>) -> TableColumn {
        TableColumn {
            name: name.to_owned(),
            type_oid: base.oid,
            typmod: base.typmod,
            type_name: String::new(),
            not_null: key_position.is_some(),
            base,
            is_binary: true,
            as_text: false,
            misfit: Misfit::Fail,
            shape_misfit: Misfit::Fail,
            key_position,
        }
    }

    fn tables() -> Vec<SizedTable> {
        let columns = vec![
            column("day", BaseType::scalar(oid::DATE, -1), Some(0)),
            column("at", BaseType::scalar(oid::TIMESTAMPTZ, -1), None),
            column("price", BaseType::scalar(oid::NUMERIC, 655_366), None),
            column("tags", BaseType::array(oid::TEXT_ARRAY, oid::TEXT), None),
            column("id", BaseType::scalar(oid::INT4, -1), None),
        ];
        let table = Table {
            id: RelationId(1),
            schema: "public".to_owned(),
            name: "t".to_owned(),
            identity: Identity::Default,
            columns,
        };
        vec![SizedTable { table, blocks: 0, rows: 0.0 }]
    }

    fn applied(policies: &ValuePolicies) -> Result<Vec<(bool, Misfit, Misfit)>, Failure> {
        let mut tables = tables();
        apply(policies, &mut tables)?;
        let of = |column: &TableColumn| (column.as_text, column.misfit, column.shape_misfit);
        Ok(tables[0].table.columns.iter().map(of).collect())
    }

    fn for_column(name: &str, policy: ValuePolicy) -> ValuePolicies {
        let key = (TableName::new("public", "t"), name.to_owned());
        ValuePolicies { columns: [(key, policy)].into(), ..ValuePolicies::default() }
    }

    #[test]
    fn defaults_of_a_kind_reach_its_columns_only() {
        let policies = ValuePolicies {
            date: ValuePolicy::Null,
            timestamp: ValuePolicy::Clamp,
            numeric: ValuePolicy::String,
            array: ValuePolicy::Null,
            ..ValuePolicies::default()
        };
        let fail = (false, Misfit::Fail, Misfit::Fail);
        assert_eq!(
            applied(&policies).unwrap(),
            [
                fail, // in the key
                (false, Misfit::Clamp, Misfit::Fail),
                (true, Misfit::Fail, Misfit::Fail),
                (false, Misfit::Fail, Misfit::Null),
                fail,
            ]
        );
    }

    #[test]
    fn a_column_of_its_own_wins_or_is_refused() {
        assert_eq!(applied(&for_column("at", ValuePolicy::Null)).unwrap()[1].1, Misfit::Null);
        assert!(applied(&for_column("id", ValuePolicy::String)).unwrap()[4].0, "any column may be text");
        for (name, policy, word) in [
            ("day", ValuePolicy::Null, "key"),
            ("price", ValuePolicy::Clamp, "clamped"),
            ("nowhere", ValuePolicy::Null, "nowhere"),
        ] {
            let failure = applied(&for_column(name, policy)).unwrap_err();
            assert!(failure.message.contains(word) && failure.hint.is_some(), "{}", failure.message);
        }
    }
}
