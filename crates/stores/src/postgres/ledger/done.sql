-- Finishes the operation $2 in the namespace $1, in a transaction of the caller's own.
select hapax_done($1, $2, $3)
