update hapax_attempt set dead_at = cast(unixepoch('subsec') * 1000 as integer) where operation = ?1 and namespace = ?2
