-- Claims the operation $2 with the fingerprint $3 and $4 in the namespace $1, as `claim.sql` does: a plain insertion is
-- planned in less than half of the time. Without a row, `claim.sql` tells why.
insert into hapax_ledger (operation, namespace, rule, fingerprint)
select $2, $1, $3, $4
 where pg_catalog.pg_try_advisory_xact_lock(
           pg_catalog.uuid_hash_extended(
               $2, pg_catalog.hashtextextended($1, 'hapax_ledger'::pg_catalog.regclass::bigint)
           )
       )
   and not exists (
       select from hapax_attempt a where a.operation = $2 and a.namespace = $1 and a.dead_at is not null
   )
    on conflict (operation, namespace) do nothing
returning xact::pg_catalog.text::bigint as transaction
