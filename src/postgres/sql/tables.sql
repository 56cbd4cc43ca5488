-- The named tables that exist: kind, identity, size. $1: schemas, $2: names, pairwise.
select c.oid::oid             as id,
       n.nspname::text        as schema,
       c.relname::text        as name,
       c.relkind::text        as kind,
       c.relpersistence::text as persistence,
       c.relreplident::text   as identity,
       (pg_relation_size(c.oid) / current_setting('block_size')::bigint)::bigint as blocks,
       greatest(c.reltuples, 0)::float8 as rows
from unnest($1::text[], $2::text[]) as wanted(schema, name)
join pg_catalog.pg_namespace n on n.nspname = wanted.schema
join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = wanted.name
