select
    id, reason, attempts, namespace, source, operation, at, marked_at, rule, fingerprint,
    origin, partition, position, position_id, sent_at, okey, headers, payload, number
from hapax_dead
where id = ?1
