-- A standby cannot read the tables of claims, because they have no log.
select pg_catalog.to_regclass('hapax_guard') is not null and not pg_catalog.pg_is_in_recovery() as has_guard
