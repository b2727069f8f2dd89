select id, length(payload) + length(headers) + coalesce(length(okey), 0) from hapax_queue
where queue = ?1 and is_first = 1 and visible_at <= ?2
order by visible_at
limit ?3
