insert into hapax_parked (key, row_id, bucket, event_id, topic, reason, parked_at)
select coalesce(okey, event_id), id, bucket, event_id, topic, ?3, ?4
  from hapax_outbox
 where id = ?1 and event_id = ?2 and state in (0, 2)
    on conflict (key) do nothing
