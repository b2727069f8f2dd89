-- The time that mark.sql would give to a row.
select clock_timestamp() as now
