-- Removes at most $4 rows that were published or dropped more than $3 seconds ago from the pages $1 to $2.
with swept as (
    delete from hapax_outbox
     where ctid = any (array (
               select ctid
                 from hapax_outbox
                where ctid >= $1::pg_catalog.tid and ctid < $2::pg_catalog.tid
                  and state in (1, 3)
                  and published_at < pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => $3)
                limit $4
           ))
       and state in (1, 3)
    returning id
)
select pg_catalog.count(*) as removed,
       pg_catalog.pg_relation_size('hapax_outbox') / pg_catalog.current_setting('block_size')::bigint as pages
  from swept
