-- The rows C6 and C1 of the protocol, for each grant of the arrays $1 to $10: completes its record, or inserts the
-- completed record if none is stored and `may_recreate` allows it. The fingerprint is compared too, so that an altered
-- record is not overwritten.
with clock as materialized (
    select pg_catalog.clock_timestamp() as now, mark from hapax_store where id = 1
), asked as materialized (
    select *
      from unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
           as asked (rk, token, owner, rule, fingerprint, record_check, expiry_s, answer, life_s, may_recreate)
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
), completed as (
    update hapax_record r
       set state = 2, takeover = false, owner = null, attempt = null, lease_ms = null, lifetime_s = null,
           expiry_s = a.expiry_s, record_check = a.record_check, answer = a.answer, since = c.now,
           expires_at = c.now + pg_catalog.make_interval(secs => a.life_s)
      from asked a cross join clock c
     where r.ctid = any (array(select location from held))
       and r.rk = a.rk and r.token = a.token and r.owner = a.owner
       and r.rule = a.rule and r.fingerprint = a.fingerprint
       and r.state in (1, 3, 4) and r.expires_at > c.now
    returning r.rk
), inserted as (
    insert into hapax_record (rk, state, takeover, rule, fingerprint, token, expiry_s, record_check, answer, since,
                              expires_at)
    select a.rk, 2, false, a.rule, a.fingerprint, a.token, a.expiry_s, a.record_check, a.answer, c.now,
           c.now + pg_catalog.make_interval(secs => a.life_s)
      from asked a cross join clock c
     where a.may_recreate and not exists (select from found f where f.rk = a.rk)
     order by a.rk
        on conflict (rk) do nothing
    returning rk
), written as (
    select rk from completed union all select rk from inserted
)
select a.rk as asked_rk, c.now, c.mark, w.rk is not null as is_written, null::bigint as newest_token, f.*
  from asked a cross join clock c left join found f on f.rk = a.rk left join written w on w.rk = a.rk
