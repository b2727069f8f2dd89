-- The records after the key $1, at most $2, in the order of the keys.
select pg_catalog.clock_timestamp() as now, pg_catalog.pg_is_in_recovery() as is_standby, r.*
  from hapax_record r where r.rk > $1 order by r.rk limit $2
