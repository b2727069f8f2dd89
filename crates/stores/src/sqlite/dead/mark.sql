update hapax_dead set marked_at = ?2, free_at = ?3, reason = ?4 where id = ?1
