-- Whether the tables of claims can be checked, whether the role may read them, their bytes, and their dead rows that no
-- vacuum has removed. A standby cannot read the tables, because they have no log.
select t.guard is not null and not pg_catalog.pg_is_in_recovery() as has_guard,
       coalesce(pg_catalog.has_table_privilege(t.guard, 'select')
                and pg_catalog.has_table_privilege(t.open, 'select'), false) as is_readable,
       coalesce(pg_catalog.pg_total_relation_size(t.guard) + pg_catalog.pg_total_relation_size(t.open), 0) as bytes,
       coalesce(pg_catalog.pg_stat_get_dead_tuples(t.guard) + pg_catalog.pg_stat_get_dead_tuples(t.open), 0)
           as dead_rows
  from (select pg_catalog.to_regclass('hapax_guard')::pg_catalog.oid as guard,
               pg_catalog.to_regclass('hapax_open')::pg_catalog.oid as open) t
