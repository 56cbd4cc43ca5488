-- Replication slots and walsenders that are left.
select current_setting('max_replication_slots')::bigint - (select count(*) from pg_catalog.pg_replication_slots),
       current_setting('max_wal_senders')::bigint - (select count(*) from pg_catalog.pg_stat_replication)
