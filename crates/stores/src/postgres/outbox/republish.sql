-- Looks at the $3 rows behind $2, and opens those that were published $1 microseconds after the epoch or later. The
-- state hides in a select, as in mark.sql.
with looked_at as materialized (
    select id, state = 1 and published_at >= timestamptz 'epoch' + $1 * interval '1 microsecond' as is_recent
      from hapax_outbox
     where id > $2
     order by id
     limit $3
), opened as (
    update hapax_outbox o
       set state = 0, published_at = null
     where o.id = any (array (select id from looked_at where is_recent)) and o.state = (select 1::smallint)
    returning o.id
), rewound as (
    update hapax_relay set rewinds = rewinds + 1 where exists (select from opened)
)
select max(id) as last from looked_at
