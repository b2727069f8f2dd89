-- Finishes the operation $3 of the guard $1 in the namespace $2.
select hapax_finish_one($1::pg_catalog.tid, $2, $3, $4, $5, $6, $7)
