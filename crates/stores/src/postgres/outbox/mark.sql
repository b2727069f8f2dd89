-- Makes the open rows $1 with the events $2 published, if $3 republications have begun. None begins before the commit,
-- so that a republication finds each row whose mark counts. A crash of the server may forget the marks: then the rows
-- are published again, under the same ids. So the commit does not wait for the disk. It fails where it would wait for
-- another transaction; mark_unlocked.sql passes over such rows. The arrays and the state hide in selects: otherwise the
-- plan could go through the index of open rows once for each id.
with held as materialized (
    select hapax_hold_republications() as republications
     where (select pg_catalog.set_config('lock_timeout', '100ms', true)) is not null
), marked as (
    update hapax_outbox o
       set state = 1, published_at = pg_catalog.clock_timestamp()
      from unnest((select $1), (select $2)) a (id, event_id)
     where (select republications from held) = $3
       and o.id = a.id and o.event_id = a.event_id and o.state = (select 0::smallint)
    returning o.id
)
select pg_catalog.count(*) as marked, (select republications from held) is distinct from $3 as is_rewound,
       pg_catalog.set_config('synchronous_commit', 'off', true)
  from marked
