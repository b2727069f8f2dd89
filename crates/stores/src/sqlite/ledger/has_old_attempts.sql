select exists (
    select 1 from hapax_attempt
    where namespace = ?1 and coalesce(dead_at, first_at) < cast(unixepoch('subsec') * 1000 as integer) - ?2
)
