-- Parks the key of the row $1 for the reason $2, and sets the row aside. Writes the row of a key that is parked
-- already, so that a resumption that runs at the same time ends before, or finds the row.
with parked as (
    insert into hapax_parked as p (key, bucket, row_id, event_id, topic, reason)
    select coalesce(okey, uuid_send(event_id)), bucket, id, event_id, topic, $2 from hapax_outbox where id = $1
        on conflict (key) do update set reason = p.reason
    returning key
)
update hapax_outbox o set state = 2 from parked where o.id = $1 and o.state = 0
