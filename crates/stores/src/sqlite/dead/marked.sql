select id from hapax_dead where source = ?1 and marked_at is not null and free_at <= ?2 order by marked_at limit ?3
