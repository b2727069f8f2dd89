-- Completed records that live for a day. Nothing reads them, so their check need not be right.
insert into hapax_record (rk, state, takeover, rule, fingerprint, token, expiry_s, record_check, answer, since,
                          expires_at)
select decode(md5('filled ' || n), 'hex'), 2, false, 1, '\x000102030405060708090a0b', n, 0, '\x0001020304050607',
       '{"charge":"ch_0123456789","amount":500,"status":"paid"}', clock_timestamp(),
       clock_timestamp() + interval '1 day'
  from generate_series(1, $1::bigint) n
