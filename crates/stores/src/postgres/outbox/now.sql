-- The time that mark.sql would give to a row.
select pg_catalog.clock_timestamp() as now
