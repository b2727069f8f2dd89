-- Inserts each record of the arrays $1 to $12, or returns the one that is stored. A caller that finds nothing and has
-- not written either lost a race, or its token was too small: it takes token and clock from this reply and tries again.
-- The clock may be off by a second, so that one statement suffices.
with clock as materialized (
    select pg_catalog.clock_timestamp() as now, mark from hapax_store where id = 1
), asked as materialized (
    select *
      from unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
           as asked (rk, state, takeover, rule, fingerprint, token, owner, attempt, lease_ms, lifetime_s, record_check,
                     life_s)
     order by rk
), found as materialized (
    select stored.* from asked a cross join lateral (select * from hapax_record where rk = a.rk limit 1) stored
), inserted as (
    insert into hapax_record (rk, state, takeover, rule, fingerprint, token, owner, attempt, lease_ms, lifetime_s,
                              since, expires_at, record_check)
    select a.rk, a.state, a.takeover, a.rule, a.fingerprint, a.token, a.owner, a.attempt, a.lease_ms, a.lifetime_s,
           c.now, c.now + pg_catalog.make_interval(secs => a.life_s), a.record_check
      from asked a cross join clock c
     where not exists (select from found f where f.rk = a.rk)
       and (a.token < 0, a.token) > (c.mark < 0, c.mark)
       and (a.token < 0 or a.token >= (extract(epoch from c.now) * 1000000::numeric)::bigint - 1000000)
     order by a.rk
        on conflict (rk) do nothing
    returning rk
)
select a.rk as asked_rk, c.now, c.mark, i.rk is not null as is_written,
       case when f.state is distinct from 2 and i.rk is null then
           (select token from hapax_record order by (token < 0) desc, token desc limit 1)
       end as newest_token,
       f.*
  from asked a cross join clock c left join found f on f.rk = a.rk left join inserted i on i.rk = a.rk
