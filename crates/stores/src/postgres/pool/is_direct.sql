select where pg_catalog.pg_backend_pid() operator(pg_catalog.=) $1
