update hapax_dead set free_at = ?2, taken_until = ?3 
where id = ?1 and marked_at is not null and (?3 is null or taken_until is not null)
