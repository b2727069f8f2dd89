-- As outbox/sequence.sql, for the numbers of dead letters.
select 'select setval(''hapax_dead_number'', (select max(number) from hapax_dead))' as remedy
  from hapax_dead_number s
 where (select pg_catalog.max(number) from hapax_dead)
       >= case when s.is_called then s.last_value + 1::bigint else s.last_value end
