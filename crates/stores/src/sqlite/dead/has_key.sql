select 1 from hapax_dead where source = ?1 and okey = ?2 limit 1
