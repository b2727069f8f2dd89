-- Looks at the $4 rows behind $3, and opens those that were published from $1 microseconds after the epoch on, and
-- before $2. The state hides in a select, as in mark.sql.
--
-- The republication is counted before, by begin_republication.sql. So marks count while the operator goes through the
-- table. That is safe: a relay whose mark counts had read the republication, and published the row after that. So the
-- broker got this event after the operator had decided to publish again, whether the row was open all the time, or an
-- earlier call has opened it.
with looked_at as materialized (
    select id,
           state = 1
           and published_at >= timestamp with time zone 'epoch' + $1::double precision * interval '1 microsecond'
           and published_at < timestamp with time zone 'epoch' + $2::double precision * interval '1 microsecond'
           as is_meant
      from hapax_outbox
     where id > $3
     order by id
     limit $4
), opened as (
    update hapax_outbox o
       set state = 0, published_at = null
     where o.id = any (array (select id from looked_at where is_meant)) and o.state = (select 1::smallint)
    returning o.id
), rewound as (
    update hapax_relay set openings = openings + 1::bigint where exists (select from opened)
)
select (select pg_catalog.max(id) from looked_at) as last, (select pg_catalog.count(*) from opened) as opened
