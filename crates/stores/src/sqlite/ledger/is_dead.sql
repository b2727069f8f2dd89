select exists (select 1 from hapax_attempt where operation = ?1 and namespace = ?2 and dead_at is not null)
