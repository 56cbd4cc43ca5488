-- The columns of table $1.$2 in order, and each one's place in the key (from 1; null: not in it). The key is the
-- replica identity's index where there is one, else the primary key; a deferrable one tells no rows apart within a
-- transaction, and is none.
with relation as (
    select class.oid, class.relreplident
    from pg_class class join pg_namespace namespace on namespace.oid = class.relnamespace
    where namespace.nspname = $1 and class.relname = $2 and class.relkind in ('r', 'p')
),
key as (
    select index.indrelid, index.indkey::int2[] as columns, index.indnkeyatts
    from pg_index index join relation on relation.oid = index.indrelid
    where index.indisvalid
      and index.indimmediate
      and case relation.relreplident when 'i' then index.indisreplident else index.indisprimary end
)
select
    attribute.attname::text as name,
    attribute.atttypid as type_oid,
    attribute.atttypmod as typmod,
    attribute.attgenerated <> '' as is_generated,
    place.ordinality::int as key_place
from relation
join pg_attribute attribute on attribute.attrelid = relation.oid
left join key on key.indrelid = relation.oid
left join lateral (
    select column_number.ordinality
    from unnest(key.columns) with ordinality as column_number (attnum, ordinality)
    where column_number.attnum = attribute.attnum and column_number.ordinality <= key.indnkeyatts
) place on true
where attribute.attnum > 0 and not attribute.attisdropped
order by attribute.attnum
