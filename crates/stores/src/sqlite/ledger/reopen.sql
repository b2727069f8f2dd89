delete from hapax_attempt where operation = ?1 and namespace = ?2 returning dead_at is not null
