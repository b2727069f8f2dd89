update hapax_dead
set marked_at = coalesce(marked_at, ?2), free_at = coalesce(free_at, ?2),
    reason = case when reason = ?3 then ?4 else reason end
where id = ?1
returning operation, namespace
