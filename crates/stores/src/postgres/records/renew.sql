-- The row R2 of the protocol: the lease and the life begin again.
with clock as materialized (
    select pg_catalog.clock_timestamp() as now, mark from hapax_store where id = 1
), found as materialized (
    select * from hapax_record where rk = $1
), renewed as (
    update hapax_record r
       set since = c.now, expires_at = c.now + pg_catalog.make_interval(secs => r.lifetime_s)
      from clock c
     where r.rk = $1 and r.token = $2 and r.owner = $3 and r.state = 1 and r.lease_ms > 0 and r.expires_at > c.now
    returning r.rk
)
select $1 as asked_rk, c.now, c.mark, exists (select from renewed) as is_written, null::bigint as newest_token, f.*
  from clock c left join found f on true
