-- Not `to_regclass`: after a wait for the lock it may still not know a table that another session has created.
select from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where n.nspname = $1 and c.relname = 'hapax_migration'
