-- Removes the rows of the namespace $1 that are older than $4 seconds from the pages $2 to $3 of both tables. `pages`
-- is the size of the larger one.
with ended as (
    delete from hapax_ledger
     where ctid >= $2::pg_catalog.tid and ctid < $3::pg_catalog.tid
       and namespace = $1
       and created_at < pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => $4)
    returning 1
), failed as (
    delete from hapax_attempt
     where ctid >= $2::pg_catalog.tid and ctid < $3::pg_catalog.tid
       and namespace = $1
       and coalesce(dead_at, first_at) < pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => $4)
    returning 1
)
select (select pg_catalog.count(*) from ended) + (select pg_catalog.count(*) from failed) as removed,
       greatest(pg_catalog.pg_relation_size('hapax_ledger'), pg_catalog.pg_relation_size('hapax_attempt'))
           / pg_catalog.current_setting('block_size')::bigint as pages
