select s.mark, r.state, r.takeover, r.rule, r.fingerprint, r.token, r.owner, r.attempt, r.lease_ms, r.lifetime_s,
       r.answer, r.expiry_s, r.since, r.expires_at, r.record_check
  from hapax_store s left join hapax_record r on r.rk = ?1
 where s.id = 1
