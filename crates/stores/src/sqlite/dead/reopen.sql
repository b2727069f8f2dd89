delete from hapax_attempt where operation = ?1 and namespace = ?2
