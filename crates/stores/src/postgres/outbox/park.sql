-- Parks the keys of the rows $1 with the events $2 for the reasons $3, and sets the rows aside, if they are not
-- published. Returns the ids of these rows. The first row of a key gives the reason. Writes the row of a key that is
-- parked already, so that a resumption that runs at the same time ends before, or finds the row. The keys come in their
-- order: two calls that have the same ones do not wait for each other. Fails after a while where another transaction
-- has a lock. The arrays and the states hide in selects, as in mark.sql.
with refused as materialized (
    select o.id, o.bucket, o.event_id, o.topic, a.reason, coalesce(o.okey, pg_catalog.uuid_send(o.event_id)) as key
      from unnest((select $1), (select $2), (select $3)) a (id, event_id, reason), hapax_outbox o
     where (select pg_catalog.set_config('lock_timeout', '5s', true)) is not null
       and o.id = a.id and o.event_id = a.event_id and o.state = any ((select array[0, 2]::smallint[])::smallint[])
), parked as (
    insert into hapax_parked as p (key, bucket, row_id, event_id, topic, reason)
    select distinct on (key) key, bucket, id, event_id, topic, reason from refused order by key, id
        on conflict (key) do update set reason = p.reason
    returning key
), aside as (
    update hapax_outbox o
       set state = 2
     where o.id = any (array (select r.id from refused r join parked p on p.key = r.key))
       and o.state = (select 0::smallint)
)
select id from refused
