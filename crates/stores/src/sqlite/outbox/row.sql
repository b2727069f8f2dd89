select id, state, event_id, namespace, operation, n, topic, okey, type, source, content_type, headers, payload,
       created_at, bucket, exists (select 1 from hapax_parked p where p.key = coalesce(o.okey, o.event_id)) as is_parked
  from hapax_outbox o
 where id = ?1
