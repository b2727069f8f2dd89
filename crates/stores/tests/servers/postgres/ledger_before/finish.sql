-- Finishes rows that this transaction has claimed. The returned rows must be all of them.
update hapax_ledger l
   set open = null, verdict = u.verdict, answer = u.answer
  from unnest((select $2), (select $3), (select $4)) u (operation, verdict, answer)
 where l.operation = u.operation and l.namespace = $1 and l.open = 1 and l.xact = pg_catalog.pg_current_xact_id()
returning l.operation
