delete from hapax_dead where id = $1 returning 1
