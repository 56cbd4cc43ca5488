//! Which types there are, and what lies below a domain or an array. The resolution is pure.
//!
//! Hazards: `typelem` is set for types that are no arrays (`name`, `point`), so an array is a type that its element
//! names as its own; a domain's modifier is the innermost one's; a domain over an array may be an array's element.

use std::collections::HashMap;

use anyhow::Context;
use tokio_postgres::Client;

use super::oid;
use crate::change::{BaseType, Element};

/// Types whose binary form a sink reads. All others travel as text.
const BINARY: [u32; 21] = [
    oid::BOOL,
    oid::BYTEA,
    oid::INT8,
    oid::INT2,
    oid::INT4,
    oid::TEXT,
    oid::OID,
    oid::JSON,
    oid::FLOAT4,
    oid::FLOAT8,
    oid::BPCHAR,
    oid::VARCHAR,
    oid::DATE,
    oid::TIME,
    oid::TIMESTAMP,
    oid::TIMESTAMPTZ,
    oid::NUMERIC,
    oid::UUID,
    oid::JSONB,
    oid::XID8,
    oid::NAME,
];

/// Whether every value of a type can be read in binary form.
pub fn has_binary_form(base: &BaseType) -> bool {
    match base.element {
        Some(element) => {
            !element.is_array && (element.is_enum || element.sends_text || BINARY.contains(&element.oid))
        }
        None => base.is_enum || base.sends_text || BINARY.contains(&base.oid),
    }
}

/// A row of pg_type.
#[derive(Clone, Debug)]
struct TypeRow {
    is_enum: bool,
    /// For a domain: what it is made of, and the modifier that it adds.
    domain: Option<(u32, i32)>,
    /// 0 for none.
    element: u32,
    /// The array of this type; 0 for none.
    array: u32,
    delimiter: u8,
    sends_text: bool,
}

/// All types of a database.
#[derive(Clone, Debug, Default)]
pub struct Types(HashMap<u32, TypeRow>);

impl Types {
    pub async fn read(client: &Client) -> anyhow::Result<Types> {
        let rows = client.query(include_str!("sql/types.sql"), &[]).await.context("read the types")?;
        let read = |row: &tokio_postgres::Row| {
            let kind = row.get::<_, i8>("kind") as u8;
            let domain = (kind == b'd').then(|| (row.get("base"), row.get("typmod")));
            let is = TypeRow {
                is_enum: kind == b'e',
                domain,
                element: row.get("element"),
                array: row.get("array"),
                delimiter: row.get::<_, i8>("delimiter") as u8,
                sends_text: row.get("sends_text"),
            };
            (row.get::<_, u32>("oid"), is)
        };
        Ok(Types(rows.iter().map(read).collect()))
    }

    /// What a column of a declared type and modifier holds. A type that is not known is taken as it is: its text is
    /// all that is asked of it.
    pub fn resolve(&self, declared: u32, typmod: i32) -> BaseType {
        let (oid, typmod) = self.below_domains(declared, typmod);
        let Some(row) = self.0.get(&oid) else { return BaseType::scalar(oid, typmod) };
        let is_array = self.0.get(&row.element).is_some_and(|element| element.array == oid);
        let (element, typmod) = match is_array {
            true => {
                let (element, typmod) = self.element(row.element, typmod);
                (Some(element), typmod)
            }
            false => (None, typmod),
        };
        BaseType { oid, typmod, is_enum: row.is_enum, sends_text: row.sends_text, element }
    }

    fn below_domains(&self, mut oid: u32, mut typmod: i32) -> (u32, i32) {
        while let Some((base, added)) = self.0.get(&oid).and_then(|row| row.domain) {
            if typmod == -1 {
                typmod = added;
            }
            oid = base;
        }
        (oid, typmod)
    }

    fn element(&self, declared_oid: u32, typmod: i32) -> (Element, i32) {
        let (oid, typmod) = self.below_domains(declared_oid, typmod);
        let row = self.0.get(&oid);
        let is_array =
            row.is_some_and(|row| self.0.get(&row.element).is_some_and(|element| element.array == oid));
        let delimiter = self.0.get(&declared_oid).map_or(b',', |row| row.delimiter);
        let (is_enum, sends_text) = row.map_or((false, false), |row| (row.is_enum, row.sends_text));
        (Element { declared_oid, oid, is_array, is_enum, sends_text, delimiter }, typmod)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MONEYISH: u32 = 90_001;
    const MONEYISH_ARRAY: u32 = 90_002;
    const OUTER: u32 = 90_003;
    const GRID: u32 = 90_004;
    const GRID_ARRAY: u32 = 90_005;
    const MOOD: u32 = 90_006;

    fn row() -> TypeRow {
        TypeRow { is_enum: false, domain: None, element: 0, array: 0, delimiter: b',', sends_text: false }
    }

    fn types() -> Types {
        Types(HashMap::from([
            (oid::NUMERIC, TypeRow { array: 1231, ..row() }),
            (1231, TypeRow { element: oid::NUMERIC, ..row() }),
            // A domain with a modifier, a domain above it, and an array of the first.
            (MONEYISH, TypeRow { domain: Some((oid::NUMERIC, 655_366)), array: MONEYISH_ARRAY, ..row() }),
            (MONEYISH_ARRAY, TypeRow { element: MONEYISH, ..row() }),
            (OUTER, TypeRow { domain: Some((MONEYISH, -1)), ..row() }),
            // A domain over an array, as an element.
            (GRID, TypeRow { domain: Some((1231, -1)), array: GRID_ARRAY, ..row() }),
            (GRID_ARRAY, TypeRow { element: GRID, ..row() }),
            (MOOD, TypeRow { is_enum: true, ..row() }),
            // No array, though it has elements.
            (600, TypeRow { element: oid::FLOAT8, array: 1017, ..row() }),
            (oid::FLOAT8, TypeRow { array: 1022, ..row() }),
        ]))
    }

    #[test]
    fn domains_come_off_to_any_depth_and_keep_the_modifier() {
        let types = types();
        assert_eq!(types.resolve(OUTER, -1), BaseType::scalar(oid::NUMERIC, 655_366));
        let array = types.resolve(MONEYISH_ARRAY, -1);
        let element = array.element.unwrap();
        assert_eq!((element.declared_oid, element.oid, array.typmod), (MONEYISH, oid::NUMERIC, 655_366));
        assert!(has_binary_form(&array));
    }

    #[test]
    fn arrays_are_told_from_what_only_has_elements() {
        let types = types();
        assert_eq!(types.resolve(600, -1).element, None, "a point");
        assert!(!has_binary_form(&types.resolve(600, -1)));
        let grid = types.resolve(GRID_ARRAY, -1);
        assert!(grid.element.unwrap().is_array && !has_binary_form(&grid));
        assert_eq!(types.resolve(1231, 655_366).typmod, 655_366, "the elements' modifier");
    }

    #[test]
    fn enums_are_text_and_unknown_types_too() {
        let types = types();
        assert!(has_binary_form(&types.resolve(MOOD, -1)));
        assert!(!has_binary_form(&types.resolve(12_345, -1)));
    }
}
