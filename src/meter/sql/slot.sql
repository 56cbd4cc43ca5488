-- Slot $1, its walsender and the source's own position; the slot's columns are null when there is no such slot.
-- LSNs as bytes since the beginning of the WAL, lags in seconds.
with position as (
    select case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_flush_lsn() end as flush_lsn
)
select
    (position.flush_lsn - '0/0'::pg_lsn)::float8 as flush_lsn,
    (slot.confirmed_flush_lsn - '0/0'::pg_lsn)::float8 as confirmed_lsn,
    (slot.restart_lsn - '0/0'::pg_lsn)::float8 as restart_lsn,
    (position.flush_lsn - slot.confirmed_flush_lsn)::float8 as confirmed_behind_bytes,
    (position.flush_lsn - slot.restart_lsn)::float8 as restart_behind_bytes,
    (position.flush_lsn - sender.sent_lsn)::float8 as sent_behind_bytes,
    slot.active::int::float8 as active,
    slot.active_pid::float8 as walsender_pid,
    case slot.wal_status
        when 'reserved' then 0 when 'extended' then 1 when 'unreserved' then 2 when 'lost' then 3
    end::float8 as wal_status,
    extract(epoch from sender.write_lag)::float8 as write_lag_s,
    extract(epoch from sender.flush_lag)::float8 as flush_lag_s,
    extract(epoch from sender.replay_lag)::float8 as replay_lag_s
from position
left join pg_replication_slots slot on slot.slot_name = $1::text
left join pg_stat_replication sender on sender.pid = slot.active_pid
