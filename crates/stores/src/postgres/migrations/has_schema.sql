select from pg_catalog.pg_namespace where nspname = $1
