-- Finishes the operations $3 of the guard $1 in the namespace $2, in ascending order.
select hapax_finish($1::pg_catalog.tid, $2, $3, $4, $5, $6, $7)
