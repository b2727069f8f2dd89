delete from hapax_queue_event where (queue, event_id, republications) in (
    select queue, event_id, republications from hapax_queue_event
    where put_at < cast(unixepoch('subsec') * 1000 as integer) - ?1
    order by put_at
    limit ?2
)
