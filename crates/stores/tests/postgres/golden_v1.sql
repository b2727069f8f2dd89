-- A completed record as schema version 1 wrote it: namespace "golden", tenant "acme", key "order-1", far from expiry.
insert into hapax_record (rk, state, takeover, rule, fingerprint, token, answer, expiry_s, since, expires_at,
                          record_check)
values ('\x74f4c5d81d49f5e68782b67250642463', 2, false, 1, '\x6c51e1855b0d5bcd2b9aa36d', 1795222501926186,
        'golden answer', 4102444800, to_timestamp(1795222501.926186), to_timestamp(4102444800), '\x99b05adb055e0f5f')
