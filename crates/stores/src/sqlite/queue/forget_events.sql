delete from hapax_queue_event where (queue, event_id) in (
    select queue, event_id from hapax_queue_event
    where put_at < cast(unixepoch('subsec') * 1000 as integer) - ?1
    order by put_at
    limit ?2
)
