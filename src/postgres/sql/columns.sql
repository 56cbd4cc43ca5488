-- The columns of one table ($1: oid) in attribute order, and where each stands in the key that identifies a row:
-- the identity's index, else the primary key (which under FULL finds the row as well).
with key as (
    select i.indkey::int2[] as attnums, i.indnkeyatts as size
    from pg_catalog.pg_index i
    join pg_catalog.pg_class c on c.oid = i.indrelid
    where i.indrelid = $1::oid
      and i.indisvalid
      and i.indimmediate
      and case c.relreplident when 'i' then i.indisreplident when 'n' then false else i.indisprimary end
)
select a.attname::text                                as name,
       a.atttypid::oid                                as type_oid,
       a.atttypmod                                    as typmod,
       pg_catalog.format_type(a.atttypid, a.atttypmod) as type_name,
       a.attnotnull                                   as not_null,
       a.attgenerated::text                           as generated,
       (select position - 1
        from key, unnest(key.attnums) with ordinality as k(attnum, position)
        where k.attnum = a.attnum and position <= key.size)::int2 as key_position
from pg_catalog.pg_attribute a
where a.attrelid = $1::oid and a.attnum > 0 and not a.attisdropped
order by a.attnum
