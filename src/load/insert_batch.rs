//! `insert-batch`: many rows in one INSERT, as applications batch them.
//!
//! The rows travel as one binary `text[]` that is built once and restamped in place for each statement: the client's
//! cost is one copy into the socket's buffer, so that two cores are left to the servers. To the server it is a
//! prepared INSERT of so many rows: the same heap, index and WAL records as with a VALUES list.

use anyhow::{Context, Result};
use bytes::BytesMut;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio_postgres::{
    Client, Statement,
    types::{IsNull, ToSql, Type, to_sql_checked},
};

use crate::{config::TableName, postgres::quote};

/// ndim, flags, element type, length, lower bound: 4 bytes each.
const ARRAY_HEADER: usize = 20;
const LENGTH_WORD: usize = 4;
/// Bytes at the head of each payload that differ from statement to statement.
const STAMP: usize = 16;
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// One client's prepared INSERT and its parameters.
pub struct InsertBatch {
    insert: Statement,
    payloads: TextArray,
    batch: i32,
}

impl InsertBatch {
    /// Prepares on `client`. `stream` tells clients with the same seed apart.
    pub async fn prepare(
        client: &Client,
        table: &TableName,
        rows: u32,
        payload_bytes: u32,
        seed: u64,
        stream: u32,
    ) -> Result<Self> {
        let sql = format!(
            "insert into {} (batch, payload) select $1::int, payload from unnest($2::text[]) payload",
            quote::qualified(table)
        );
        let insert =
            client.prepare(&sql).await.with_context(|| format!("prepare the INSERT into {table}"))?;
        let mut random = SmallRng::seed_from_u64(seed ^ (u64::from(stream) << 32));
        let payloads = TextArray::random(rows as usize, payload_bytes as usize, &mut random);
        Ok(InsertBatch { insert, payloads, batch: stream as i32 })
    }

    /// Sends one statement; returns the rows that the server says it inserted.
    pub async fn run(&mut self, client: &Client) -> Result<u64, tokio_postgres::Error> {
        self.payloads.restamp();
        self.batch = self.batch.wrapping_add(1);
        client.execute(&self.insert, &[&self.batch, &self.payloads]).await
    }
}

/// A `text[]` in PostgreSQL's binary form, ready to be sent; all elements have the same length.
#[derive(Debug)]
struct TextArray {
    bytes: Vec<u8>,
    element_bytes: usize,
    stamp: u64,
}

impl TextArray {
    /// Letters of base64, drawn evenly: six bits a byte, which no page or WAL compression shrinks by much.
    fn random(elements: usize, element_bytes: usize, random: &mut SmallRng) -> Self {
        let mut bytes = Vec::with_capacity(ARRAY_HEADER + elements * (LENGTH_WORD + element_bytes));
        for word in [1, 0, Type::TEXT.oid() as i32, elements as i32, 1] {
            bytes.extend(word.to_be_bytes());
        }
        for _ in 0..elements {
            bytes.extend((element_bytes as i32).to_be_bytes());
            bytes.extend((0..element_bytes).map(|_| LETTERS[random.random_range(0..LETTERS.len())]));
        }
        let stamp = random.random_range(0..u64::MAX / 2);
        TextArray { bytes, element_bytes, stamp }
    }

    /// Gives every element a head that it never had before.
    fn restamp(&mut self) {
        for element in self.bytes[ARRAY_HEADER..].chunks_exact_mut(LENGTH_WORD + self.element_bytes) {
            self.stamp += 1;
            let mut rest = self.stamp;
            for byte in element[LENGTH_WORD..].iter_mut().take(STAMP) {
                *byte = LETTERS[(rest % 64) as usize];
                rest /= 64;
            }
        }
    }
}

impl ToSql for TextArray {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(&self.bytes);
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TEXT_ARRAY
    }

    to_sql_checked!();
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use tokio_postgres::types::FromSql;

    use super::*;

    fn elements(array: &TextArray) -> Vec<String> {
        Vec::<String>::from_sql(&Type::TEXT_ARRAY, &array.bytes).expect("a well-formed array")
    }

    #[test]
    fn the_array_is_what_postgres_reads() {
        for (count, length) in [(100, 200), (1, 1), (3, 0)] {
            let mut array = TextArray::random(count, length, &mut SmallRng::seed_from_u64(1));
            array.restamp();
            let elements = elements(&array);
            assert_eq!(elements.len(), count);
            assert!(elements.iter().all(|element| element.len() == length));
        }
    }

    #[test]
    fn payloads_repeat_neither_within_nor_between_statements() {
        let mut array = TextArray::random(100, 20, &mut SmallRng::seed_from_u64(7));
        let mut seen = HashSet::new();
        for _ in 0..50 {
            array.restamp();
            assert!(elements(&array).into_iter().all(|element| seen.insert(element)));
        }
    }

    #[test]
    fn a_seed_gives_the_same_payloads_again() {
        let of = |seed| elements(&TextArray::random(5, 30, &mut SmallRng::seed_from_u64(seed)));
        assert_eq!(of(3), of(3));
        assert_ne!(of(3), of(4));
    }
}
