-- The clock, and the records after the key @after up to the key @last.
SELECT UNIX_MICROS(CURRENT_TIMESTAMP()), rk, value, UNIX_MICROS(armed_at), UNIX_MICROS(expires_at)
  FROM hapax_record
 WHERE rk > @after AND rk <= @last
 ORDER BY rk
