update hapax_dead set marked_at = coalesce(marked_at, ?2), free_at = coalesce(free_at, ?2) where id = ?1
returning operation, namespace
