-- What a pipe meets at one table ($1: oid): rights, size, where its key comes from, what its rows are like.
select pg_catalog.has_table_privilege(c.oid, 'select')                   as may_select,
       pg_catalog.pg_has_role(c.relowner, 'usage')                       as is_owner,
       pg_catalog.pg_get_userbyid(c.relowner)::text                      as owner,
       pg_catalog.row_security_active(c.oid)                             as row_security,
       pg_catalog.pg_table_size(c.oid)::bigint                           as bytes,
       coalesce(pg_catalog.obj_description(c.oid, 'pg_class'), '')       as comment,
       key.name                                                          as key_index,
       exists (select from pg_catalog.pg_index i
               where i.indrelid = c.oid and i.indisprimary and not i.indimmediate) as has_deferrable_key,
       -- An index that could be the replica identity: unique, at once, whole, over columns that are never null.
       (select index.relname::text
        from pg_catalog.pg_index i join pg_catalog.pg_class index on index.oid = i.indexrelid
        where i.indrelid = c.oid and i.indisunique and i.indimmediate and i.indisvalid
          and i.indpred is null and i.indexprs is null
          and not exists (select from unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) as k(attnum)
                          join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum = k.attnum
                          where not a.attnotnull)
        order by i.indnkeyatts, i.indexrelid
        limit 1)                                                         as candidate_index,
       (select parent.oid::regclass::text from pg_catalog.pg_inherits h
        join pg_catalog.pg_class parent on parent.oid = h.inhparent
        where h.inhrelid = c.oid limit 1)                                as child_of,
       c.relispartition                                                  as is_partition,
       (select coalesce(pg_catalog.array_agg(a.attname::text order by a.attnum), '{}')
        from pg_catalog.pg_attribute a
        where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
          and a.attlen = -1 and a.attstorage in ('x', 'e'))              as large_columns
from pg_catalog.pg_class c
left join lateral (
    select index.relname::text as name
    from pg_catalog.pg_index i join pg_catalog.pg_class index on index.oid = i.indexrelid
    where i.indrelid = c.oid and i.indisvalid and i.indimmediate
      and case c.relreplident when 'i' then i.indisreplident when 'n' then false else i.indisprimary end
) key on true
where c.oid = $1::oid
