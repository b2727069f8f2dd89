-- As mark.sql, but leaves the rows on which another transaction has a lock, and returns them.
with held as materialized (
    select hapax_hold_republications() as republications
     where (select pg_catalog.set_config('lock_timeout', '100ms', true)) is not null
), asked as materialized (
    select o.id, o.event_id
      from unnest((select $1), (select $2)) a (id, event_id), hapax_outbox o
     where (select republications from held) = $3
       and o.id = a.id and o.event_id = a.event_id and o.state = (select 0::smallint)
), free as materialized (
    select o.id
      from hapax_outbox o
     where o.id = any (array (select id from asked)) and o.state = (select 0::smallint)
       for update skip locked
), marked as (
    update hapax_outbox o
       set state = 1, published_at = pg_catalog.clock_timestamp()
     where o.id = any (array (select id from free)) and o.state = (select 0::smallint)
    returning o.id
)
select (select pg_catalog.count(*) from marked) as marked,
       array (select id from asked where id not in (select id from free)) as locked,
       (select republications from held) is distinct from $3 as is_rewound,
       pg_catalog.set_config('synchronous_commit', 'off', true)
