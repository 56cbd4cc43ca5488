//! What one client sends, over and over.

use anyhow::Result;
use tokio_postgres::Client;

use super::{insert_batch::InsertBatch, simple_update::SimpleUpdate};
use crate::config::{LoadPlan, Workload};

/// One client's prepared workload.
pub enum Session {
    InsertBatch(InsertBatch),
    SimpleUpdate(Box<SimpleUpdate>),
}

impl Session {
    /// Prepares the plan's statements on `client`, which is client number `number` of the load.
    pub async fn prepare(client: &Client, plan: &LoadPlan, number: u32) -> Result<Self> {
        Ok(match &plan.workload {
            Workload::InsertBatch { table, rows_per_statement, payload_bytes } => {
                let (rows, bytes) = (*rows_per_statement, *payload_bytes);
                let batch = InsertBatch::prepare(client, table, rows, bytes, plan.seed, number).await?;
                Session::InsertBatch(batch)
            }
            Workload::SimpleUpdate { scale } => {
                let update = SimpleUpdate::prepare(client, *scale, plan.seed, number).await?;
                Session::SimpleUpdate(Box::new(update))
            }
        })
    }

    /// One statement (for `simple-update`: one transaction) and its answer; returns the rows written.
    pub async fn run(&mut self, client: &Client) -> Result<u64, tokio_postgres::Error> {
        match self {
            Session::InsertBatch(batch) => batch.run(client).await,
            Session::SimpleUpdate(update) => update.run(client).await,
        }
    }
}
