-- Writes the record $1 to $13, with the lifetime $14, if the record that was seen is still stored: $16 to $27, with the
-- end of its life $15. If $15 is null, the seen record had expired or there was none: it must have expired or be gone.
with clock as materialized (
    select pg_catalog.clock_timestamp() as now, mark from hapax_store where id = 1
), found as materialized (
    select * from hapax_record where rk = $1
), replaced as (
    update hapax_record r
       set state = $2, takeover = $3, rule = $4, fingerprint = $5, token = $6, owner = $7, attempt = $8,
           lease_ms = $9, lifetime_s = $10, record_check = $11, expiry_s = $12, answer = $13, since = c.now,
           expires_at = c.now + pg_catalog.make_interval(secs => $14)
      from clock c
     where r.rk = $1
       and case when $15 is null then r.expires_at <= c.now
                else r.expires_at = $15 and r.expires_at > c.now end
       and (r.state, r.takeover, r.rule, r.fingerprint, r.token, r.record_check) = ($16, $17, $18, $19, $20, $25)
       and (r.owner, r.attempt, r.lease_ms, r.lifetime_s, r.expiry_s, r.answer)
           is not distinct from ($21, $22, $23, $24, $26, $27)
    returning r.rk
), inserted as (
    insert into hapax_record (rk, state, takeover, rule, fingerprint, token, owner, attempt, lease_ms, lifetime_s,
                              record_check, expiry_s, answer, since, expires_at)
    select $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, now, now + pg_catalog.make_interval(secs => $14)
      from clock
     where $15 is null and not exists (select from found)
        on conflict (rk) do nothing
    returning rk
), written as (
    select rk from replaced union all select rk from inserted
), raised as (
    -- A completion under an older token: its row no longer shows the newer one.
    update hapax_store s
       set mark = $20
      from written
     where s.id = 1 and ($20 < 0, $20) > ($6 < 0, $6) and ($20 < 0, $20) > (s.mark < 0, s.mark)
)
select $1 as asked_rk, c.now, c.mark, exists (select from written) as is_written,
       null::bigint as newest_token, f.*
  from clock c left join found f on true
