-- Drops the row for which the key $1 was parked.
with parked as materialized (
    select row_id, event_id from hapax_parked where key = $1 for update
)
update hapax_outbox o
   set state = 3, published_at = clock_timestamp()
  from parked
 where o.id = parked.row_id and o.event_id = parked.event_id and o.state in (0, 2)
returning o.id
