delete from hapax_attempt
where (operation, namespace) in (
    select operation, namespace from hapax_attempt
    where namespace = ?1 and coalesce(dead_at, first_at) < cast(unixepoch('subsec') * 1000 as integer) - ?2
    limit ?3
)
