-- The rows with the events @events, with their keys, whether a key is parked, and whether it is being resumed.
SELECT o.bucket, UNIX_MICROS(o.created_at), o.seq, o.event_id, o.state, o.topic, IFNULL(o.okey, o.event_id),
       p.okey IS NOT NULL, p.resumed_at IS NOT NULL
  FROM UNNEST(@events) AS event
  JOIN hapax_outbox@{FORCE_INDEX=hapax_outbox_event} AS o ON o.event_id = event
  LEFT JOIN hapax_parked AS p ON p.okey = IFNULL(o.okey, o.event_id)
