-- The row R2 of the protocol, for each grant of the arrays $1 to $3: the lease and the life begin again.
with clock as materialized (
    select pg_catalog.clock_timestamp() as now, mark from hapax_store where id = 1
), asked as materialized (
    select * from unnest($1, $2, $3) as asked (rk, token, owner)
     order by rk
), found as materialized (
    select stored.*
      from asked a
     cross join lateral (select *, ctid as location from hapax_record where rk = a.rk limit 1) stored
), held as materialized (
    select ctid as location
      from hapax_record
     where ctid = any (array(select location from found))
       for update skip locked
), renewed as (
    update hapax_record r
       set since = c.now, expires_at = c.now + pg_catalog.make_interval(secs => r.lifetime_s)
      from asked a cross join clock c
     where r.ctid = any (array(select location from held))
       and r.rk = a.rk and r.token = a.token and r.owner = a.owner
       and r.state = 1 and r.lease_ms > 0 and r.expires_at > c.now
    returning r.rk
)
select a.rk as asked_rk, c.now, c.mark, w.rk is not null as is_written, null::bigint as newest_token, f.*
  from asked a cross join clock c left join found f on f.rk = a.rk left join renewed w on w.rk = a.rk
