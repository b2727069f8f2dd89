delete from hapax_dead where id = ?1 and marked_at = ?2
