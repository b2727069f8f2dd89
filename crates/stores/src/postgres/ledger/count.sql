-- Counts a failed attempt of the operation $2, and closes it after attempt number $4. 0 closes none.
insert into hapax_attempt as a (operation, namespace, last_error, dead_at)
values ($2, $1, $3, case when $4 = 1 then pg_catalog.clock_timestamp() end)
    on conflict (operation, namespace) do update
   set attempts = a.attempts + 1, last_error = excluded.last_error,
       dead_at = case when $4 > 0 and a.attempts + 1 >= $4 then pg_catalog.clock_timestamp() else a.dead_at end
returning attempts
