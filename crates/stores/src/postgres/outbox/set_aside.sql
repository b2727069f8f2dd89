-- Sets the open rows $1 with the events $2 aside whose keys are parked. The locks keep a resumption of these keys away
-- until the commit. Fails after a while where another transaction has a lock. The arrays and the state hide in selects,
-- as in mark.sql.
with asked as materialized (
    select o.id, coalesce(o.okey, pg_catalog.uuid_send(o.event_id)) as key
      from unnest((select $1), (select $2)) a (id, event_id), hapax_outbox o
     where (select pg_catalog.set_config('lock_timeout', '5s', true)) is not null
       and o.id = a.id and o.event_id = a.event_id
), locked as materialized (
    select p.key
      from hapax_parked p
     where p.resumed_at is null and p.key in (select key from asked)
     order by p.key
       for share
)
update hapax_outbox o
   set state = 2
 where o.id = any (array (select a.id from asked a join locked l on l.key = a.key))
   and o.state = (select 0::smallint)
