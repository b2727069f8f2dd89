delete from hapax_dead where id = ?1
