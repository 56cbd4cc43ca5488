-- A publication ($1) and the tables in it, with what it leaves out of each; no row when it does not exist.
-- Row filters and column lists are there since 15: by to_jsonb, so that older servers take the statement as well.
select p.pubinsert as inserts, p.pubupdate as updates, p.pubdelete as deletes, p.pubtruncate as truncates,
       t.schemaname::text as schema, t.tablename::text as name,
       to_jsonb(t) ->> 'rowfilter' as row_filter,
       coalesce((select pg_catalog.array_agg(a.attname::text order by a.attnum)
                 from pg_catalog.pg_namespace n
                 join pg_catalog.pg_class c on c.relnamespace = n.oid
                 join pg_catalog.pg_attribute a on a.attrelid = c.oid
                 where n.nspname = t.schemaname and c.relname = t.tablename
                   and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
                   and not coalesce(to_jsonb(t) -> 'attnames' @> to_jsonb(a.attname::text), true)),
                '{}') as missing_columns
from pg_catalog.pg_publication p
left join pg_catalog.pg_publication_tables t on t.pubname = p.pubname
where p.pubname = $1
