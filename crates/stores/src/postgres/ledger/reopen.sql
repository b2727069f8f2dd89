-- Removes the failed attempts of the operation $2 in the namespace $1.
delete from hapax_attempt where operation = $2 and namespace = $1 returning dead_at is not null as was_dead
