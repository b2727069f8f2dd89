-- A completed record as schema version 1 wrote it: namespace "golden", tenant "acme", key "order-1", far from expiry.
insert into hapax_record (rk, state, takeover, rule, fingerprint, token, owner, attempt, lease_ms, lifetime_s,
                          answer, expiry_s, since, expires_at, record_check)
values (x'74f4c5d81d49f5e68782b67250642463', 2, 0, 1,
        x'6c51e1855b0d5bcd2b9aa36d', 1795222501926186, null, null, null, null,
        x'676f6c64656e20616e73776572', 4102444800, 1795222501926186, 4102444800000000,
        x'99b05adb055e0f5f')
