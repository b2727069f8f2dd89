select id, state, event_id, namespace, operation, n, topic, okey, type, source, content_type,
       headers::pg_catalog.text as headers, payload, created_at
  from hapax_outbox
 where event_id = $1
