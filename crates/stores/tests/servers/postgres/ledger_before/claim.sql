-- Claims the operations $2 with the fingerprints $3 and $4 in the namespace $1. Takes the lock of each without waiting,
-- so that no claim waits for its twin, and inserts in the order of the operations, so that two batches cannot block
-- each other. Ledgers of one database lock apart: the table's own number is part of the lock. Returns the inserted
-- operations and those whose lock is taken: the others were not inserted. The arrays hide in selects, so that every
-- plan is made for arrays of unknown length.
with asked as materialized (
    select u.operation, u.rule, u.fingerprint,
           pg_catalog.pg_try_advisory_xact_lock(
               pg_catalog.uuid_hash_extended(
                   u.operation, pg_catalog.hashtextextended($1, 'hapax_ledger'::pg_catalog.regclass::bigint)
               )
           ) as is_locked
      from unnest((select $2), (select $3), (select $4)) u (operation, rule, fingerprint)
), inserted as (
    insert into hapax_ledger (operation, namespace, rule, fingerprint)
    select operation, $1, rule, fingerprint
      from asked
     where is_locked
       and not exists (
           select from hapax_attempt a
            where a.operation = asked.operation and a.namespace = $1 and a.dead_at is not null
       )
     order by operation
        on conflict (operation, namespace) do nothing
    returning operation
)
select operation, true as is_inserted,
       (select pg_catalog.pg_current_xact_id()::pg_catalog.text::bigint) as transaction
  from inserted
 union all
select operation, false, null from asked where not is_locked
