-- Drops the row for which the key $1 was parked, if it has the event $2, or any event without $2.
with parked as materialized (
    select row_id, event_id from hapax_parked where key = $1 for update
)
update hapax_outbox o
   set state = 3, published_at = pg_catalog.clock_timestamp()
  from parked
 where o.id = parked.row_id and o.event_id = parked.event_id and o.state in (0, 2)
   and ($2 is null or o.event_id = $2)
returning o.event_id
