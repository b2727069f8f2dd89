-- At most $3 parked keys behind the key $2 that was parked at $1.
select key, row_id, event_id, topic, reason, parked_at
  from hapax_parked
 where $1 is null or (parked_at, key) > ($1, $2)
 order by parked_at, key
 limit $3
