-- Reads open rows of the buckets $1 behind the ids $2, at most $3 of each, until they have $4 bytes. The first row of
-- each bucket comes before the second one of any. One row without an id if there is none. The arrays hide in selects,
-- so that every plan is made for arrays of unknown length.
with asked as materialized (
    select u.bucket, u.after, u.most
      from unnest((select $1::smallint[]), (select $2::bigint[]), (select $3::bigint[])) u (bucket, after, most)
), found as (
    select o.*, row_number() over (partition by o.bucket order by o.id) as place
      from asked,
           lateral (
               select *
                 from hapax_outbox
                where state = 0 and bucket = asked.bucket and id > asked.after
                order by bucket, id
                limit asked.most
           ) o
), summed as (
    select found.*,
           sum(octet_length(payload) + pg_column_size(headers)) over ordered as bytes,
           row_number() over ordered = 1 as is_first,
           count(*) over () as found
      from found
    window ordered as (order by place, id)
)
select r.rewinds, s.found, s.id, s.bucket, s.event_id, s.namespace, s.operation, s.n, s.topic, s.okey, s.type, s.source,
       s.content_type, s.headers::text as headers, s.payload, s.created_at,
       exists (select from hapax_parked p where p.key = coalesce(s.okey, uuid_send(s.event_id))) as is_parked
  from hapax_relay r
  left join summed s on s.bytes <= $4 or s.is_first
 order by s.id
