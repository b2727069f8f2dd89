select count(*) from hapax_queue where queue = ?1
