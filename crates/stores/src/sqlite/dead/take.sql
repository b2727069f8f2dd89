update hapax_dead set free_at = ?2, taken_until = ?2 where id = ?1
