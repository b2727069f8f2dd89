update hapax_dead
set free_at = pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => $2),
    taken_until = case when $3 then pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => $2) end
where id = any($1) and marked_at is not null and (taken_until is not null or not $3)
