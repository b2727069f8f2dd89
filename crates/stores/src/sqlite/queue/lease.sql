update hapax_queue set owner = ?2, visible_at = ?3, attempts = attempts + 1 where id = ?1
returning attempts, enqueued_at, okey, headers, payload
