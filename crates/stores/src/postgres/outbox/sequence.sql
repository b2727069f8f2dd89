-- The statement that brings the sequence behind the largest id, if it would draw an id that a row has. An id is drawn
-- before its row can be seen, and the sequence is read after the snapshot of the rows was taken.
select 'select pg_catalog.setval(''hapax_outbox_id'', (select pg_catalog.max(id) from hapax_outbox))' as remedy
  from hapax_outbox_id s
 where (select pg_catalog.max(id) from hapax_outbox)
       >= case when s.is_called then s.last_value + 1::bigint else s.last_value end
