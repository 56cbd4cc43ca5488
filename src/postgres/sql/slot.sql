-- A replication slot ($1) as it is now; no row when it does not exist.
select s.plugin::text                    as plugin,
       s.database::text                  as database,
       s.active_pid                      as active_pid,
       s.confirmed_flush_lsn::text       as confirmed_flush_lsn,
       s.wal_status                      as wal_status
from pg_catalog.pg_replication_slots s
where s.slot_name = $1
