insert into hapax_dead (
    id, reason, attempts, namespace, source, operation, rule, fingerprint, at,
    origin, partition, position, position_id, sent_at, okey, headers, payload
)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)
