insert into hapax_outbox (
    event_id, namespace, operation, n, okey, bucket, topic, type, source, content_type, headers, created_at, payload
)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, cast(unixepoch('subsec') * 1000 as integer), ?12)
