select number, marked_at, reason, operation, namespace, taken_until, at from hapax_dead where id = ?1
