update hapax_dead set free_at = clock_timestamp() + make_interval(secs => $2)
where id = any($1) and marked_at is not null
