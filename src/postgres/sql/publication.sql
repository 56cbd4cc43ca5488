-- A publication ($1) and the tables in it; no row when it does not exist.
select p.pubinsert as inserts, p.pubupdate as updates, p.pubdelete as deletes, p.pubtruncate as truncates,
       t.schemaname::text as schema, t.tablename::text as name
from pg_catalog.pg_publication p
left join pg_catalog.pg_publication_tables t on t.pubname = p.pubname
where p.pubname = $1
