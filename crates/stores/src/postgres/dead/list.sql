select id, reason, attempts, namespace, source, operation, at, marked_at,
    pg_catalog.octet_length(payload)::bigint as size, number
from hapax_dead
where number > $1
order by number
limit $2
