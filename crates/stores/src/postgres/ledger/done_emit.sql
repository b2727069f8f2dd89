-- Finishes an operation as `done.sql` does, and writes its events as `finish_emit.sql` does.
with finished as materialized (
    select hapax_done($1, $2, $3)
)
insert into hapax_outbox (namespace, event_id, operation, n, okey, topic, type, source, content_type, headers, payload)
select $1, u.event_id, u.operation, u.n, u.okey, u.topic, u.type, u.source, u.content_type,
       u.headers::pg_catalog.jsonb, u.payload
  from finished,
       unnest($4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
       with ordinality
       u (event_id, operation, n, okey, topic, type, source, content_type, headers, payload, place)
 order by u.place
