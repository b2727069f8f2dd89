-- Removes the rows of the namespace $1 that are older than $4 seconds from the pages $2 to $3 of both tables. `pages`
-- is the size of the larger one.
with ended as (
    delete from hapax_ledger
     where ctid >= $2::text::tid and ctid < $3::text::tid
       and namespace = $1 and open is null and created_at < clock_timestamp() - $4 * interval '1 second'
    returning 1
), failed as (
    delete from hapax_attempt
     where ctid >= $2::text::tid and ctid < $3::text::tid
       and namespace = $1 and coalesce(dead_at, first_at) < clock_timestamp() - $4 * interval '1 second'
    returning 1
)
select (select count(*) from ended) + (select count(*) from failed) as removed,
       greatest(pg_relation_size('hapax_ledger'), pg_relation_size('hapax_attempt'))
           / current_setting('block_size')::bigint as pages
