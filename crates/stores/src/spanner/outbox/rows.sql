-- The rows with the events @events.
SELECT bucket, UNIX_MICROS(created_at), seq, event_id, namespace, operation, n, okey, topic, type, source, content_type,
       headers, payload, state
  FROM hapax_outbox@{FORCE_INDEX=hapax_outbox_event}
 WHERE event_id IN UNNEST(@events)
