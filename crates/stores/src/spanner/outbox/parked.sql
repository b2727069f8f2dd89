-- At most @most parked keys behind the key @okey that was parked at @since, in microseconds.
SELECT okey, UNIX_MICROS(created_at), seq, event_id, topic, reason, UNIX_MICROS(parked_at)
  FROM hapax_parked
 WHERE parked_at >= TIMESTAMP_MICROS(@since) AND (parked_at > TIMESTAMP_MICROS(@since) OR okey > @okey)
 ORDER BY parked_at, okey
 LIMIT @most
