insert into hapax_parked (key, row_id, bucket, event_id, topic, reason, parked_at)
select coalesce(okey, event_id), id, bucket, event_id, topic, ?2, ?3 from hapax_outbox where id = ?1
    on conflict (key) do nothing
