update hapax_dead
set reason = $3, marked_at = greatest(pg_catalog.clock_timestamp(), marked_at + interval '1 microsecond')
where id = $1 and marked_at = $2 and reason = $4
returning marked_at
