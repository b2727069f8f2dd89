-- Reads a window of rows in id order. A row keeps its id as long as it exists.
select id, rk, state, takeover, rule, fingerprint, token, owner, attempt, lease_ms, lifetime_s, answer, expiry_s,
       since, expires_at, record_check
  from hapax_record where id > ?1 order by id limit ?2
