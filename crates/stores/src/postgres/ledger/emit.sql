insert into hapax_outbox (namespace, event_id, operation, n, okey, topic, type, source, content_type, headers, payload)
select $1, u.event_id, u.operation, u.n, u.okey, u.topic, u.type, u.source, u.content_type, u.headers::jsonb, u.payload
  from unnest($2::uuid[], $3::uuid[], $4::integer[], $5::bytea[], $6::text[], $7::text[], $8::text[], $9::text[],
              $10::text[], $11::bytea[])
       with ordinality
       u (event_id, operation, n, okey, topic, type, source, content_type, headers, payload, place)
 order by u.place
