delete from hapax_record where rk = ?1
