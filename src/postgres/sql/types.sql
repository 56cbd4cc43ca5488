-- All types of the database, but the row types of tables, which nobody needs by their parts.
select t.oid::oid               as oid,
       t.typtype                as kind,
       t.typbasetype::oid       as base,
       t.typtypmod              as typmod,
       t.typelem::oid           as element,
       t.typarray::oid          as array,
       t.typdelim               as delimiter,
       coalesce(p.prosrc in ('textsend', 'varcharsend', 'bpcharsend', 'namesend', 'json_send'), false) as sends_text
from pg_catalog.pg_type t
left join pg_catalog.pg_proc p on p.oid = t.typsend
left join pg_catalog.pg_class c on c.oid = t.typrelid
where c.relkind is null or c.relkind = 'c'
