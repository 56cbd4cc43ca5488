-- Bytes and pages of the table $1 (a quoted, qualified name), partitions included.
select
    coalesce(sum(pg_relation_size(tree.relid)), 0)::bigint as bytes,
    (coalesce(sum(pg_relation_size(tree.relid)), 0) / current_setting('block_size')::bigint)::bigint as pages
from pg_partition_tree($1::text::regclass) tree
