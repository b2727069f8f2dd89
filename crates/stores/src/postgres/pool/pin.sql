-- Pins the search path for the rest of the session, if this is the process $1.
select pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false)
 where pg_catalog.pg_backend_pid() = $1
