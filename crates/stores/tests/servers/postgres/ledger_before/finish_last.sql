-- Finishes rows as `finish.sql` does. Fails with a division by zero unless there are $5 of them, because COMMIT is on
-- its way already.
with finished as (
    update hapax_ledger l
       set open = null, verdict = u.verdict, answer = u.answer
      from unnest((select $2), (select $3), (select $4)) u (operation, verdict, answer)
     where l.operation = u.operation and l.namespace = $1 and l.open = 1 and l.xact = pg_catalog.pg_current_xact_id()
    returning 1
)
select 1 / (pg_catalog.count(*) = $5)::integer from finished
