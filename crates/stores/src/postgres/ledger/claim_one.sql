-- Claims the operation $2 in the namespace $1 for a runner.
select c.guard::pg_catalog.text, pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.text::bigint as transaction
  from hapax_claim_one($1, $2) c (guard)
