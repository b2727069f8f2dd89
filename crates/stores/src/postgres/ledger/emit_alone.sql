insert into hapax_outbox (namespace, event_id, operation, n, okey, topic, type, source, content_type, headers, payload)
select $1, u.event_id, u.operation, u.n, u.okey, u.topic, u.type, u.source, u.content_type,
       u.headers::pg_catalog.jsonb, u.payload
  from unnest($2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
       with ordinality
       u (event_id, operation, n, okey, topic, type, source, content_type, headers, payload, place)
 order by u.place
