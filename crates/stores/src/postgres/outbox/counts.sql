-- Counts open rows up to $1, and parked keys. The first row of each bucket is its oldest one.
select (
           select pg_catalog.count(*) from (select from hapax_outbox where state = 0 order by bucket, id limit $1) open
       ) as open,
       (select pg_catalog.count(*) from hapax_parked) as parked_keys,
       (
           select extract(epoch from pg_catalog.clock_timestamp() - pg_catalog.min(o.created_at))::double precision
             from pg_catalog.generate_series(0, 63) b (bucket),
                  lateral (
                      select e.created_at
                        from hapax_outbox e
                       where e.state = 0 and e.bucket = b.bucket
                         and not exists (
                             select from hapax_parked p where p.key = coalesce(e.okey, pg_catalog.uuid_send(e.event_id))
                         )
                       order by e.bucket, e.id
                       limit 1
                  ) o
       ) as oldest
