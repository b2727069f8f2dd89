-- Parks the key of the row $1 with the event $2 for the reason $3, and sets the row aside, if it is not published.
-- Writes the row of a key that is parked already, so that a resumption that runs at the same time ends before, or finds
-- the row. Fails after a while where another transaction has a lock.
with refused as materialized (
    select *
      from hapax_outbox
     where (select pg_catalog.set_config('lock_timeout', '5s', true)) is not null
       and id = $1 and event_id = $2 and state in (0, 2)
), parked as (
    insert into hapax_parked as p (key, bucket, row_id, event_id, topic, reason)
    select coalesce(okey, pg_catalog.uuid_send(event_id)), bucket, id, event_id, topic, $3 from refused
        on conflict (key) do update set reason = p.reason
    returning key
), aside as (
    update hapax_outbox o set state = 2 from parked where o.id = $1 and o.event_id = $2 and o.state = 0
)
select exists (select from parked) as is_parked
