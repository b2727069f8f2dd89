-- The clock, and the record with the key @rk, or nulls. Columns, because Spanner has no struct above 1 MiB.
SELECT UNIX_MICROS(CURRENT_TIMESTAMP()), r.value, UNIX_MICROS(r.armed_at), UNIX_MICROS(r.expires_at)
  FROM UNNEST([1]) AS one LEFT JOIN hapax_record AS r ON r.rk = @rk
