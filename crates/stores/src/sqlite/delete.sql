delete from hapax_record where id = ?1 and expires_at <= ?2
