delete from hapax_queue where id = ?1 and attempts = ?2 and owner = ?3
