-- Removes at most $4 rows that were published or dropped more than $3 seconds ago from the pages $1 to $2.
with swept as (
    delete from hapax_outbox
     where ctid = any (array (
               select ctid
                 from hapax_outbox
                where ctid >= $1::text::tid and ctid < $2::text::tid
                  and state in (1, 3) and published_at < clock_timestamp() - $3 * interval '1 second'
                limit $4
           ))
       and state in (1, 3)
    returning id
)
select count(*) as removed, pg_relation_size('hapax_outbox') / current_setting('block_size')::bigint as pages from swept
