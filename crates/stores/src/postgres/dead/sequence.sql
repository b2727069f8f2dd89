-- As outbox/sequence.sql, for the numbers of dead letters.
select 'select pg_catalog.setval(''hapax_dead_number'', (select pg_catalog.max(number) from hapax_dead))' as remedy
  from hapax_dead_number s
 where (select pg_catalog.max(number) from hapax_dead)
       >= case when s.is_called then s.last_value + 1::bigint else s.last_value end
