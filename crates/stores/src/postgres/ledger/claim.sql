-- Claims the operations $2 in the namespace $1 for a runner, in ascending order.
select c.guard::pg_catalog.text, c.busy, c.ended,
       pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.text::bigint as transaction
  from hapax_claim($1, $2) c
