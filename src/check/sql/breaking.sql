-- Tables whose UPDATE and DELETE fail for the application itself: published with updates or deletes, but without a
-- replica identity by which to name the row (WIRE.md, pgoutput 12).
select p.pubname::text as publication, t.schemaname::text as schema, t.tablename::text as name
from pg_catalog.pg_publication p
join pg_catalog.pg_publication_tables t on t.pubname = p.pubname
join pg_catalog.pg_namespace n on n.nspname = t.schemaname
join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = t.tablename
where (p.pubupdate or p.pubdelete)
  and c.relkind in ('r', 'p')
  and c.relreplident <> 'f'
  and not exists (
      select from pg_catalog.pg_index i
      where i.indrelid = c.oid and i.indisvalid and i.indimmediate
        and case c.relreplident when 'i' then i.indisreplident when 'n' then false else i.indisprimary end)
order by 1, 2, 3
