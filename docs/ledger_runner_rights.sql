-- What a runner, such as PostgresLedger::run, needs beside docs/ledger_rights.sql: it claims for a whole transaction,
-- and counts failed attempts. Write your names for SCHEMA and SERVICE.

grant select on SCHEMA.hapax_migration to SERVICE;
grant insert, delete on SCHEMA.hapax_guard to SERVICE;
grant insert, update, delete on SCHEMA.hapax_attempt to SERVICE;
grant execute on function
    SCHEMA.hapax_claim, SCHEMA.hapax_claim_one, SCHEMA.hapax_finish, SCHEMA.hapax_finish_one
to SERVICE;
