insert into hapax_record (rk, state, takeover, rule, fingerprint, token, owner, attempt, lease_ms, lifetime_s,
                          answer, expiry_s, since, expires_at)
values (?1, ?3, 0, 1, ?2, 1795222501926186, ?4, 1, 30000, 2592000, ?5, 4102444800, 1795222501926186, 4102444800000000)
