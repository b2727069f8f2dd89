-- Finishes one row, as `finish_last.sql` does.
with finished as (
    update hapax_ledger
       set open = null, verdict = $3, answer = $4
     where operation = $2 and namespace = $1 and open = 1 and xact = pg_catalog.pg_current_xact_id()
    returning 1
)
select 1 / pg_catalog.count(*) from finished
