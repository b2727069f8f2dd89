-- The rights in docs/ledger.md. Write your names for SCHEMA and SERVICE.

grant usage on schema SCHEMA to SERVICE;

-- The ledger: a service claims and finishes, and deletes nothing.
grant select, insert, update on SCHEMA.hapax_ledger to SERVICE;
grant select on SCHEMA.hapax_attempt to SERVICE;

-- The outbox, if the service emits events.
grant insert on SCHEMA.hapax_outbox to SERVICE;
grant usage on sequence SCHEMA.hapax_outbox_id to SERVICE;
