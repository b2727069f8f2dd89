-- Reads open rows of the buckets $1 from the ids $2 on, without these ids where $8 is true, at most $3 of each, until
-- they have $4 bytes: the first row of each bucket has its bytes before the second one of any. Leaves out rows without
-- a key of the namespaces $6 with the topics $7. The rows come in any order. One row without an id if there is none.
--
-- The arrays hide in selects, so that every plan is made for arrays of unknown length. $5, the largest of $3, tells the
-- planner that a bucket gives few rows. Without it the planner expects a tenth of each bucket, and a server with jit
-- compiles the plan, which takes far longer than the read. Only a read that is to be cut numbers its rows.
with asked as materialized (
    select u.bucket, u.first, u.most, u.is_behind
      from unnest((select $1), (select $2), (select $3), (select $8)) u (bucket, first, most, is_behind)
), left_out as materialized (
    select l.namespace, l.topic from unnest((select $6), (select $7)) l (namespace, topic)
), found as materialized (
    select o.*
      from asked,
           lateral (
               select *
                 from (select *
                         from hapax_outbox
                        where state = 0 and bucket = asked.bucket and id >= asked.first
                          and (id > asked.first or not asked.is_behind)
                          and not (okey is null and (namespace, topic) in (select * from left_out))
                        order by bucket, id
                        limit asked.most) o
                limit $5
           ) o
), total as materialized (
    select pg_catalog.count(*) as found,
           pg_catalog.sum(pg_catalog.octet_length(payload) + pg_catalog.pg_column_size(headers)) as bytes
      from found
), placed as (
    select found.*, pg_catalog.row_number() over (partition by bucket order by id) as place from found
), summed as (
    select placed.*,
           pg_catalog.sum(pg_catalog.octet_length(payload) + pg_catalog.pg_column_size(headers)) over ordered as bytes,
           pg_catalog.row_number() over ordered = 1 as is_first
      from placed
    window ordered as (order by place, id)
), kept as (
    select found.*, 0::bigint as place, 0::bigint as bytes, false as is_first
      from found
     where (select bytes from total) <= $4
     union all
    select * from summed where (select bytes from total) > $4 and (bytes <= $4 or is_first)
)
select r.openings, r.republications, (select found from total) as found, k.id, k.bucket, k.event_id, k.namespace,
       k.operation, k.n, k.topic, k.okey, k.type, k.source, k.content_type, k.headers::pg_catalog.text as headers,
       k.payload, k.created_at, p.key is not null as is_parked
  from (select openings, republications from hapax_relay limit 1) r
  left join kept k on true
  left join hapax_parked p on p.key = coalesce(k.okey, pg_catalog.uuid_send(k.event_id))
