insert into hapax_queue_event (queue, event_id, republications, put_at)
values (?1, ?2, ?3, cast(unixepoch('subsec') * 1000 as integer))
-- One that was put in before the window is new.
on conflict (queue, event_id, republications) do update set put_at = excluded.put_at
where put_at < excluded.put_at - ?4
