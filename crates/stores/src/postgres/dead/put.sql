insert into hapax_dead (
    id, reason, attempts, namespace, source, operation, rule, fingerprint, at,
    origin, partition, position, position_id, sent_at, okey, headers, payload
)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)
on conflict (id) do update set
    number = excluded.number, marked_at = null, free_at = null, taken_until = null, reason = excluded.reason,
    attempts = excluded.attempts, namespace = excluded.namespace, source = excluded.source,
    operation = excluded.operation, rule = excluded.rule, fingerprint = excluded.fingerprint, at = excluded.at,
    origin = excluded.origin, partition = excluded.partition, position = excluded.position,
    position_id = excluded.position_id, sent_at = excluded.sent_at, okey = excluded.okey, headers = excluded.headers,
    payload = excluded.payload
