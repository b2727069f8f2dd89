delete from hapax_parked where key = ?1
