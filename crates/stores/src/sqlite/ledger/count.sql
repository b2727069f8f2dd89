insert into hapax_attempt (operation, namespace, attempts, first_at, last_error)
values (?1, ?2, 1, cast(unixepoch('subsec') * 1000 as integer), ?3)
on conflict (operation, namespace) do update set attempts = attempts + 1, last_error = excluded.last_error
returning attempts
