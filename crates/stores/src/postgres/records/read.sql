select pg_catalog.clock_timestamp() as now, s.mark, pg_catalog.pg_is_in_recovery() as is_standby,
       (select token from hapax_record order by (token < 0) desc, token desc limit 1) as newest_token,
       r.*
  from hapax_store s left join hapax_record r on r.rk = $1
 where s.id = 1
