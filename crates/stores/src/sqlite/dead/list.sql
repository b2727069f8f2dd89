select id, reason, attempts, namespace, source, operation, at, marked_at, length(payload), number from hapax_dead
where number > ?1
order by number
limit ?2
