-- The rows C6 and C1 of the protocol: completes the record of this grant, or inserts the completed record if none is
-- stored and $10 allows it. The fingerprint is compared too, so that an altered record is not overwritten.
with clock as materialized (
    select pg_catalog.clock_timestamp() as now, mark from hapax_store where id = 1
), found as materialized (
    select * from hapax_record where rk = $1
), completed as (
    update hapax_record r
       set state = 2, takeover = false, owner = null, attempt = null, lease_ms = null, lifetime_s = null,
           record_check = $6, expiry_s = $7, answer = $8, since = c.now,
           expires_at = c.now + pg_catalog.make_interval(secs => $9)
      from clock c
     where r.rk = $1 and r.token = $2 and r.owner = $3 and r.rule = $4 and r.fingerprint = $5
       and r.state in (1, 3, 4) and r.expires_at > c.now
    returning r.rk
), inserted as (
    insert into hapax_record (rk, state, takeover, rule, fingerprint, token, record_check, expiry_s, answer, since,
                              expires_at)
    select $1, 2, false, $4, $5, $2, $6, $7, $8, now, now + pg_catalog.make_interval(secs => $9)
      from clock
     where $10 and not exists (select from found)
        on conflict (rk) do nothing
    returning rk
)
select $1 as asked_rk, c.now, c.mark, exists (select from completed) or exists (select from inserted) as is_written,
       null::bigint as newest_token, f.*
  from clock c left join found f on true
