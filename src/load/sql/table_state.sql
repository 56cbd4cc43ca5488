-- What a table is and who made it; no row when there is none. $1 schema, $2 name.
select class.relkind::text as kind, coalesce(obj_description(class.oid, 'pg_class'), '') as comment
from pg_class class join pg_namespace namespace on namespace.oid = class.relnamespace
where namespace.nspname = $1 and class.relname = $2
