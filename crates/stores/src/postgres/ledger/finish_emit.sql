-- Finishes operations as `finish.sql` does, and writes their events in their order: one statement, so that no event is
-- left where there is no claim.
with finished as materialized (
    select hapax_finish($1::pg_catalog.tid, $2, $3, $4, $5, $6, $7)
)
insert into hapax_outbox (namespace, event_id, operation, n, okey, topic, type, source, content_type, headers, payload)
select $2, u.event_id, u.operation, u.n, u.okey, u.topic, u.type, u.source, u.content_type,
       u.headers::pg_catalog.jsonb, u.payload
  from finished,
       unnest($8, $9, $10, $11, $12, $13, $14, $15, $16, $17)
       with ordinality
       u (event_id, operation, n, okey, topic, type, source, content_type, headers, payload, place)
 order by u.place
