-- Inserts the record $1 to $12, or returns the one that is stored. A caller that finds nothing and has not written
-- either lost a race, or its token was too small: it takes token and clock from this reply and tries again. The clock
-- may be off by a second, so that one statement suffices.
with clock as materialized (
    select pg_catalog.clock_timestamp() as now, mark from hapax_store where id = 1
), found as materialized (
    select * from hapax_record where rk = $1
), inserted as (
    insert into hapax_record (rk, state, takeover, rule, fingerprint, token, owner, attempt, lease_ms, lifetime_s,
                              since, expires_at, record_check)
    select $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, now, now + pg_catalog.make_interval(secs => $12), $11
      from clock
     where not exists (select from found)
       and ($6 < 0, $6) > (mark < 0, mark)
       and ($6 < 0 or $6 >= (extract(epoch from now) * 1000000::numeric)::bigint - 1000000)
        on conflict (rk) do nothing
    returning rk
)
select $1 as asked_rk, c.now, c.mark, exists (select from inserted) as is_written,
       case when f.state is distinct from 2 and not exists (select from inserted) then
           (select token from hapax_record order by (token < 0) desc, token desc limit 1)
       end as newest_token,
       f.*
  from clock c left join found f on true
