-- Writes each record of the arrays $1 to $14 if the record that was seen is still stored: $16 to $27, with the end of
-- its life $15. If $15 is null, the seen record had expired or there was none: it must have expired or be gone.
with clock as materialized (
    select pg_catalog.clock_timestamp() as now, mark from hapax_store where id = 1
), asked as materialized (
    select *
      from unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22,
                  $23, $24, $25, $26, $27)
           as asked (rk, state, takeover, rule, fingerprint, token, owner, attempt, lease_ms, lifetime_s, record_check,
                     expiry_s, answer, life_s,
                     seen_end, seen_state, seen_takeover, seen_rule, seen_fingerprint, seen_token, seen_owner,
                     seen_attempt, seen_lease_ms, seen_lifetime_s, seen_record_check, seen_expiry_s, seen_answer)
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
), replaced as (
    update hapax_record r
       set state = a.state, takeover = a.takeover, rule = a.rule, fingerprint = a.fingerprint, token = a.token,
           owner = a.owner, attempt = a.attempt, lease_ms = a.lease_ms, lifetime_s = a.lifetime_s,
           record_check = a.record_check, expiry_s = a.expiry_s, answer = a.answer, since = c.now,
           expires_at = c.now + pg_catalog.make_interval(secs => a.life_s)
      from asked a cross join clock c
     where r.ctid = any (array(select location from held))
       and r.rk = a.rk
       and case when a.seen_end is null then r.expires_at <= c.now
                else r.expires_at = a.seen_end and r.expires_at > c.now end
       and (r.state, r.takeover, r.rule, r.fingerprint, r.token, r.record_check)
           = (a.seen_state, a.seen_takeover, a.seen_rule, a.seen_fingerprint, a.seen_token, a.seen_record_check)
       and (r.owner, r.attempt, r.lease_ms, r.lifetime_s, r.expiry_s, r.answer)
           is not distinct from (a.seen_owner, a.seen_attempt, a.seen_lease_ms, a.seen_lifetime_s, a.seen_expiry_s,
                                 a.seen_answer)
    returning r.rk
), inserted as (
    insert into hapax_record (rk, state, takeover, rule, fingerprint, token, owner, attempt, lease_ms, lifetime_s,
                              record_check, expiry_s, answer, since, expires_at)
    select a.rk, a.state, a.takeover, a.rule, a.fingerprint, a.token, a.owner, a.attempt, a.lease_ms, a.lifetime_s,
           a.record_check, a.expiry_s, a.answer, c.now, c.now + pg_catalog.make_interval(secs => a.life_s)
      from asked a cross join clock c
     where a.seen_end is null and not exists (select from found f where f.rk = a.rk)
     order by a.rk
        on conflict (rk) do nothing
    returning rk
), written as (
    select rk from replaced union all select rk from inserted
), hidden as (
    -- Completions under older tokens: their rows no longer show the newer ones.
    select a.seen_token as token
      from written w join asked a on a.rk = w.rk
     where (a.seen_token < 0, a.seen_token) > (a.token < 0, a.token)
     order by (a.seen_token < 0) desc, a.seen_token desc
     limit 1
), raised as (
    update hapax_store s
       set mark = h.token
      from hidden h
     where s.id = 1 and (h.token < 0, h.token) > (s.mark < 0, s.mark)
)
select a.rk as asked_rk, c.now, c.mark, w.rk is not null as is_written, null::bigint as newest_token, f.*
  from asked a cross join clock c left join found f on f.rk = a.rk left join written w on w.rk = a.rk
