-- The rights in docs/outbox.md. Write your names for SCHEMA, WRITER, RELAY and OPERATOR.

grant usage on schema SCHEMA to WRITER, RELAY, OPERATOR;

-- A writer inserts, and reads nothing. It chooses neither the id of a row, which is its place, nor its state.
grant insert (event_id, namespace, operation, n, okey, topic, type, source, content_type, headers, payload)
    on SCHEMA.hapax_outbox to WRITER;
grant usage on sequence SCHEMA.hapax_outbox_id to WRITER;
grant execute on function SCHEMA.hapax_order(bytea), SCHEMA.hapax_event_id(text, uuid, integer),
    SCHEMA.hapax_emit(text, uuid, integer, text, bytea, bytea, text, text, text, jsonb, boolean) to WRITER;

-- A relay publishes, parks and sweeps. Its claims of buckets are records.
grant select on SCHEMA.hapax_migration, SCHEMA.hapax_relay to RELAY;
grant select, delete, update (state, published_at) on SCHEMA.hapax_outbox to RELAY;
grant select on sequence SCHEMA.hapax_outbox_id to RELAY;
grant select, insert, update (reason) on SCHEMA.hapax_parked to RELAY;
grant execute on function SCHEMA.hapax_hold_republications() to RELAY;
grant select, update on SCHEMA.hapax_store to RELAY;
grant select, insert, update, delete on SCHEMA.hapax_record to RELAY;

-- An operator lists, resumes, drops and republishes.
grant select on SCHEMA.hapax_migration to OPERATOR;
grant select, update (state, published_at) on SCHEMA.hapax_outbox to OPERATOR;
grant select, delete, update (resumed_at) on SCHEMA.hapax_parked to OPERATOR;
grant select, update on SCHEMA.hapax_relay to OPERATOR;
grant execute on function SCHEMA.hapax_begin_republication() to OPERATOR;
