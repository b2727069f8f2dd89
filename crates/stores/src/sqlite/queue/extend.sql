update hapax_queue set visible_at = max(visible_at, ?4) where id = ?1 and attempts = ?2 and owner = ?3
