update hapax_queue set owner = null, visible_at = ?4 where id = ?1 and attempts = ?2 and owner = ?3
