update hapax_record set state = 2, owner = null, attempt = null, lease_ms = null, lifetime_s = null, answer = ?2,
       expiry_s = 4102444800, since = 1795222501926187, expires_at = 4102444800000000
 where rk = ?1 and token = 1795222501926186 and state in (1, 3, 4)
