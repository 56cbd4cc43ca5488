-- The server, the role that we are, and the settings that a slot's life depends on; null: this version lacks it.
select current_setting('server_version')                                 as version,
       current_user::text                                                as role,
       r.rolsuper                                                        as is_superuser,
       r.rolreplication                                                  as may_replicate,
       pg_catalog.has_database_privilege(current_database(), 'create')   as may_create,
       pg_catalog.pg_is_in_recovery()                                    as is_standby,
       (select setting::bigint from pg_catalog.pg_settings
        where name = 'max_slot_wal_keep_size')                           as max_slot_wal_keep_mib,
       (select setting::bigint from pg_catalog.pg_settings
        where name = 'wal_sender_timeout')                               as wal_sender_timeout_ms,
       -- Minutes in some versions of 18, seconds in others: the setting's unit says which.
       (select setting::bigint * case unit when 'min' then 60 when 'h' then 3600 else 1 end
        from pg_catalog.pg_settings
        where name = 'idle_replication_slot_timeout')                    as idle_slot_timeout_s
from pg_catalog.pg_roles r
where r.rolname = current_user
