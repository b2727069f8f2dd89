-- Can hold no row. A row of the ledger that refers to it cannot be committed.
CREATE TABLE hapax_never (
  id INT64 NOT NULL,
  CONSTRAINT hapax_never_is_empty CHECK (id IS NULL),
) PRIMARY KEY (id);
-- One row for each operation that has ended. A transaction inserts it open and finishes it, and the reference is
-- checked at the commit. Verdict 1: applied, 2: rejected. `run` names the run of the ledger that wrote it.
CREATE TABLE hapax_ledger (
  operation   BYTES(16) NOT NULL,
  namespace   STRING(255) NOT NULL,
  open        INT64,
  verdict     INT64,
  rule        INT64 NOT NULL,
  fingerprint BYTES(12) NOT NULL,
  run         INT64 NOT NULL,
  created_at  TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
  answer      BYTES(1048576),
  CONSTRAINT hapax_ledger_open FOREIGN KEY (open) REFERENCES hapax_never (id),
) PRIMARY KEY (operation, namespace), ROW DELETION POLICY (OLDER_THAN(created_at, INTERVAL 90 DAY));
-- Failed attempts of operations that have no row in the ledger. `dead_at` closes the operation.
CREATE TABLE hapax_attempt (
  operation  BYTES(16) NOT NULL,
  namespace  STRING(255) NOT NULL,
  attempts   INT64 NOT NULL,
  first_at   TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
  dead_at    TIMESTAMP OPTIONS (allow_commit_timestamp = true),
  last_error STRING(MAX) NOT NULL,
) PRIMARY KEY (operation, namespace), ROW DELETION POLICY (OLDER_THAN(first_at, INTERVAL 90 DAY));
