delete from hapax_dead d using unnest($1, $2) u(id, marked_at)
where d.id = u.id and d.marked_at = u.marked_at
