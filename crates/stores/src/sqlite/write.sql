insert into hapax_record (rk, state, takeover, rule, fingerprint, token, owner, attempt, lease_ms, lifetime_s,
                          answer, expiry_s, since, expires_at, record_check)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)
    on conflict (rk) do update
   set state = excluded.state, takeover = excluded.takeover, rule = excluded.rule, fingerprint = excluded.fingerprint,
       token = excluded.token, owner = excluded.owner, attempt = excluded.attempt, lease_ms = excluded.lease_ms,
       lifetime_s = excluded.lifetime_s, answer = excluded.answer, expiry_s = excluded.expiry_s,
       since = excluded.since, expires_at = excluded.expires_at, record_check = excluded.record_check
