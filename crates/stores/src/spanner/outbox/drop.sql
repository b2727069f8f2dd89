-- The row for which the key @okey was parked.
SELECT o.bucket, UNIX_MICROS(o.created_at), o.seq, o.event_id, o.state
  FROM hapax_parked AS p
  JOIN hapax_outbox@{FORCE_INDEX=hapax_outbox_event} AS o ON o.event_id = p.event_id
 WHERE p.okey = @okey
