-- Settings of the source that a figure may depend on, as one JSON object; those that this version lacks are left out.
select coalesce(pg_catalog.json_object_agg(s.name, s.setting || coalesce(s.unit, '')), '{}')::text
from pg_catalog.pg_settings s
where s.name in ('wal_level', 'wal_compression', 'synchronous_commit', 'synchronous_standby_names', 'fsync',
                 'full_page_writes', 'shared_buffers', 'max_wal_size', 'checkpoint_timeout',
                 'logical_decoding_work_mem', 'archive_mode', 'archive_timeout', 'io_method', 'max_wal_senders',
                 'max_replication_slots', 'wal_sender_timeout', 'max_slot_wal_keep_size', 'data_checksums',
                 'wal_segment_size', 'wal_buffers', 'commit_delay', 'hot_standby')
