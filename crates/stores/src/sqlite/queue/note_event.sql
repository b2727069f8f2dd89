insert into hapax_queue_event (queue, event_id, put_at)
values (?1, ?2, cast(unixepoch('subsec') * 1000 as integer))
on conflict do nothing
