update hapax_dead
set reason = ?3, marked_at = max(?4, marked_at + 1)
where id = ?1 and marked_at = ?2 and reason = ?5
returning marked_at
