-- The rights in docs/ledger.md. Write your names for SCHEMA and SERVICE.

grant usage on schema SCHEMA to SERVICE;

-- The ledger: a service claims and finishes, and changes and deletes no row.
grant select, insert (operation, namespace, verdict, rule, fingerprint, answer) on SCHEMA.hapax_ledger to SERVICE;
grant select, insert, update, delete on SCHEMA.hapax_open to SERVICE;
grant select on SCHEMA.hapax_attempt, SCHEMA.hapax_guard to SERVICE;
grant execute on function SCHEMA.hapax_claim_own, SCHEMA.hapax_once, SCHEMA.hapax_done to SERVICE;

-- The outbox, if the service emits events.
grant insert on SCHEMA.hapax_outbox to SERVICE;
grant usage on sequence SCHEMA.hapax_outbox_id to SERVICE;
