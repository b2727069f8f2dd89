-- The rows of the operations $2 in the namespace $1, in their order. A row with the id of this transaction is one that
-- it has claimed before.
select l.operation is not null as is_found,
       coalesce(l.xact = pg_catalog.pg_current_xact_id_if_assigned(), false) as is_claimed_here,
       l.verdict, l.rule, l.fingerprint, l.answer,
       l.xact::pg_catalog.text::bigint as transaction,
       l.operation is null and exists (
           select from hapax_attempt a
            where a.operation = u.operation and a.namespace = $1 and a.dead_at is not null
       ) as is_dead
  from pg_catalog.unnest((select $2)) with ordinality u (operation, place)
  left join hapax_ledger l on l.operation = u.operation and l.namespace = $1
 order by u.place
