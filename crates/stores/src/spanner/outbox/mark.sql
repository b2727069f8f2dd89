-- The rows with the events @events, and the number of republications that have begun.
SELECT IFNULL((SELECT republications FROM hapax_relay WHERE id = 1), 0),
       o.bucket, UNIX_MICROS(o.created_at), o.seq, o.event_id, o.state
  FROM UNNEST(@events) AS event
  LEFT JOIN hapax_outbox@{FORCE_INDEX=hapax_outbox_event} AS o ON o.event_id = event
