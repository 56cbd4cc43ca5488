//! A worker: reads both sides of one range after the other, and merges them.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use clickhouse::{Compression, query::BytesCursor};
use futures_util::{Stream, StreamExt};
use tokio_postgres::Client;

use super::{
    TablePair, VerifyOptions,
    catalog::{Plan, WholeRow},
    compare::{Merge, Needs},
    ranges::Range,
    report::Tally,
};
use crate::{
    config::{SourceEndpoint, TargetEndpoint},
    postgres::{connect::sql_session, quote},
    sink::clickhouse::quote::identifier as target_identifier,
};

/// Begins a transaction that reads one snapshot to its end.
pub const BEGIN: &str = "begin transaction isolation level repeatable read, read only";
/// Source rows that are taken from the socket at once.
const ROWS_AT_ONCE: usize = 512;
/// Rows between two words of progress.
const PROGRESS_ROWS: u64 = 10_000;
/// The target sorts on disk beyond this: a table that cannot be cut into ranges must not exhaust its memory.
const SORT_BYTES: &str = "1000000000";

/// One range of one table.
pub struct Job {
    pub table: usize,
    pub pair: TablePair,
    pub plan: Arc<Plan>,
    pub range: Range,
}

impl Job {
    fn source_sql(&self) -> String {
        if let Some(whole) = &self.plan.whole_row {
            return self.whole_source_sql(whole);
        }
        let columns = list(self.plan.projections.iter().map(|projection| &projection.source));
        let order = list(self.plan.layout.key.iter().map(|&(at, _)| &self.plan.projections[at].source_order));
        let table = quote::qualified(&self.pair.source);
        let condition = where_all([self.range.source.clone()]);
        format!("copy (select {columns} from {table}{condition} order by {order}) to stdout")
    }

    fn whole_source_sql(&self, whole: &WholeRow) -> String {
        let columns = list(self.plan.projections.iter().map(|projection| &projection.source));
        let (table, hash) = (quote::qualified(&self.pair.source), &whole.source_hash);
        format!("copy (select {hash} collate \"C\" as hash, {columns} from {table} order by 1) to stdout")
    }

    /// Rows as often as they came more often than they went. What went more often than it came has a hash that no row
    /// has, so that it shows.
    fn whole_target_sql(&self, whole: &WholeRow) -> String {
        let columns = list(self.plan.projections.iter().map(|projection| &projection.target));
        let database = target_identifier(&self.pair.target_database);
        let table = target_identifier(&self.pair.target_table);
        let is_final = if self.plan.is_final { " FINAL" } else { "" };
        let sign = match &self.plan.deleted_column {
            Some(name) => format!("if({} = 0, 1, -1)", target_identifier(name)),
            None => "1".to_owned(),
        };
        let (row, hash) = (list(whole.target_columns.iter()), &whole.target_hash);
        format!(
            "SELECT concat(if(_cdcprobe_count < 0, '-', ''), {hash}) AS _cdcprobe_hash, {columns} FROM (SELECT {row}, sum({sign}) AS _cdcprobe_count \
             FROM {database}.{table}{is_final} GROUP BY {row}) ARRAY JOIN range(toUInt64(abs(_cdcprobe_count))) AS _cdcprobe_copy \
             ORDER BY _cdcprobe_hash"
        )
    }

    fn target_sql(&self) -> String {
        let plan = &self.plan;
        if let Some(whole) = &plan.whole_row {
            return self.whole_target_sql(whole);
        }
        let columns = list(plan.projections.iter().map(|projection| &projection.target));
        let order = list(plan.layout.key.iter().map(|&(at, _)| &plan.projections[at].target_order));
        let database = target_identifier(&self.pair.target_database);
        let table = target_identifier(&self.pair.target_table);
        let is_final = if plan.is_final { " FINAL" } else { "" };
        let alive = plan.deleted_column.iter().map(|name| format!("{} = 0", target_identifier(name)));
        let condition = where_all(alive.chain([self.range.target.clone()]));
        format!("SELECT {columns} FROM {database}.{table}{is_final}{condition} ORDER BY {order}")
    }
}

fn list<'a>(parts: impl Iterator<Item = &'a String>) -> String {
    parts.map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// A WHERE of all conditions that are not empty.
fn where_all(conditions: impl IntoIterator<Item = String>) -> String {
    let conditions: Vec<String> = conditions.into_iter().filter(|condition| !condition.is_empty()).collect();
    if conditions.is_empty() { String::new() } else { format!(" WHERE {}", conditions.join(" AND ")) }
}

/// A worker's connections.
pub struct Reader {
    source: Client,
    target: clickhouse::Client,
    options: VerifyOptions,
    done: Arc<AtomicU64>,
}

impl Reader {
    pub async fn connect(
        source: &SourceEndpoint,
        target: &TargetEndpoint,
        snapshot: &str,
        options: &VerifyOptions,
        done: Arc<AtomicU64>,
    ) -> Result<Self> {
        let source = sql_session(source, "cdcprobe verify").await?;
        let begin = format!("{BEGIN}; set transaction snapshot {}", quote::literal(snapshot));
        source.batch_execute(&begin).await.context("take the comparison's snapshot")?;
        Ok(Reader { source, target: target_client(target), options: options.clone(), done })
    }

    async fn compare(&self, job: &Job) -> Result<Tally> {
        let source = self.source.copy_out(&job.source_sql()).await;
        let source = source.with_context(|| format!("copy {} out of the source", job.pair.source))?;
        let mut source = std::pin::pin!(source.ready_chunks(ROWS_AT_ONCE));
        let mut target = self.target.query_raw(&job.target_sql()).fetch_bytes("TabSeparated")?;
        let mut merge = Merge::new(&job.plan.layout, self.options.max_examples);
        let mut told = 0;
        loop {
            match merge.advance() {
                Needs::Nothing => break,
                Needs::Source => {
                    merge.source.ended = !push_source(&mut merge, source.as_mut())
                        .await
                        .with_context(|| format!("read {} from the source", job.pair.source))?;
                }
                Needs::Target => {
                    merge.target.ended = !push_target(&mut merge, &mut target)
                        .await
                        .with_context(|| format!("read {} from the target", job.pair.target()))?;
                }
            }
            let rows = source_rows(&merge.tally);
            if rows - told >= PROGRESS_ROWS {
                self.tell(rows - told);
                told = rows;
            }
        }
        self.tell(source_rows(&merge.tally) - told);
        let unended = merge.source.lines.rest() + merge.target.lines.rest();
        ensure!(unended == 0, "a stream of {} ended within a row", job.pair.source);
        Ok(merge.tally)
    }

    fn tell(&self, rows: u64) {
        (self.options.progress)(self.done.fetch_add(rows, Relaxed) + rows);
    }
}

fn source_rows(tally: &Tally) -> u64 {
    tally.verified + tally.lost + tally.differing
}

/// Pushes what has come from the source; `false` at its end.
async fn push_source<S>(merge: &mut Merge<'_>, mut rows: Pin<&mut S>) -> Result<bool>
where
    S: Stream<Item = Vec<Result<Bytes, tokio_postgres::Error>>>,
{
    let Some(rows) = rows.next().await else { return Ok(false) };
    for row in rows {
        merge.source.lines.push(row?);
    }
    Ok(true)
}

async fn push_target(merge: &mut Merge<'_>, chunks: &mut BytesCursor) -> Result<bool> {
    let Some(chunk) = chunks.next().await? else { return Ok(false) };
    merge.target.lines.push(chunk);
    Ok(true)
}

/// Takes the next job until there is none; tallies with the jobs' numbers.
pub async fn run(reader: Reader, jobs: Arc<Vec<Job>>, next: Arc<AtomicUsize>) -> Result<Vec<(usize, Tally)>> {
    let mut tallies = Vec::new();
    loop {
        let number = next.fetch_add(1, Relaxed);
        let Some(job) = jobs.get(number) else { return Ok(tallies) };
        tallies.push((number, reader.compare(job).await?));
    }
}

/// A client of the target whose settings keep values in the texts that [`super::projection`] counts on.
pub fn target_client(endpoint: &TargetEndpoint) -> clickhouse::Client {
    let mut client = clickhouse::Client::default()
        .with_url(&endpoint.url)
        .with_user(&endpoint.user)
        .with_compression(if endpoint.compression { Compression::Lz4 } else { Compression::None })
        .with_setting("output_format_decimal_trailing_zeros", "0")
        .with_setting("format_tsv_null_representation", "\\N")
        .with_setting("date_time_output_format", "simple")
        .with_setting("bool_true_representation", "true")
        .with_setting("output_format_tsv_crlf_end_of_line", "0")
        .with_setting("max_bytes_before_external_sort", SORT_BYTES);
    if let Some(password) = &endpoint.password {
        client = client.with_password(password.expose());
    }
    client
}
