-- {database} and {table} are quoted by the caller. The row with the highest sequence of a slot is its checkpoint.
create table if not exists {database}.{table}
(
    slot              String,
    system_identifier UInt64,
    timeline          UInt32,
    lsn               UInt64,
    stage             LowCardinality(String),
    sequence          UInt64,
    written_at        DateTime64(6, 'UTC') default now64(6, 'UTC')
)
engine = ReplacingMergeTree(sequence)
order by slot
