insert into hapax_queue (queue, okey, is_first, visible_at, enqueued_at, headers, payload)
values (
    ?1, ?2, ?2 is null or not exists (select 1 from hapax_queue where queue = ?1 and okey = ?2),
    cast(unixepoch('subsec') * 1000 as integer) + ?3, cast(unixepoch('subsec') * 1000 as integer), ?4, ?5
)
