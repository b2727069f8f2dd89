-- Events that leave after the commit. Rows of one transaction share `created_at`; `seq` is their order in it. Buckets
-- come first, so that the table does not grow at one end. `state` is 0 while the row is open, 1: published, 2: set
-- aside, 3: dropped. `is_open` is true while it is 0, and `aside` is the key while it is 2. Otherwise they are null,
-- and the row is not in their index. The database computes both.
CREATE TABLE hapax_outbox (
  bucket       INT64 NOT NULL,
  created_at   TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
  seq          INT64 NOT NULL,
  event_id     BYTES(16) NOT NULL,
  namespace    STRING(255) NOT NULL,
  operation    BYTES(16),
  n            INT64,
  okey         BYTES(255),
  topic        STRING(255) NOT NULL,
  type         STRING(255),
  source       STRING(255),
  content_type STRING(255),
  headers      STRING(MAX) NOT NULL,
  state        INT64 NOT NULL,
  published_at TIMESTAMP OPTIONS (allow_commit_timestamp = true),
  payload      BYTES(1000000) NOT NULL,
  is_open      BOOL AS (IF(state = 0, TRUE, NULL)) STORED,
  aside        BYTES(255) AS (IF(state = 2, IFNULL(okey, event_id), NULL)) STORED,
  size         INT64 AS (BYTE_LENGTH(payload) + IF(headers = '{}', 0, BYTE_LENGTH(headers))) STORED,
  CONSTRAINT hapax_outbox_ids CHECK (BYTE_LENGTH(event_id) = 16 AND IFNULL(BYTE_LENGTH(operation), 16) = 16),
  CONSTRAINT hapax_outbox_numbers CHECK (bucket BETWEEN 0 AND 63 AND state BETWEEN 0 AND 3 AND seq BETWEEN 0 AND 65535),
  CONSTRAINT hapax_outbox_names CHECK (
    BYTE_LENGTH(topic) BETWEEN 1 AND 255 AND IFNULL(BYTE_LENGTH(okey), 1) > 0 AND BYTE_LENGTH(namespace) <= 255
    AND IFNULL(BYTE_LENGTH(type), 0) <= 255 AND IFNULL(BYTE_LENGTH(source), 0) <= 255
    AND IFNULL(BYTE_LENGTH(content_type), 0) <= 255
  ),
) PRIMARY KEY (bucket, created_at, seq, event_id),
  ROW DELETION POLICY (OLDER_THAN(published_at, INTERVAL 30 DAY));
CREATE UNIQUE INDEX hapax_outbox_event ON hapax_outbox (event_id);
CREATE NULL_FILTERED INDEX hapax_outbox_open ON hapax_outbox (bucket, is_open, created_at, seq, event_id)
  STORING (okey, namespace, topic, size);
CREATE NULL_FILTERED INDEX hapax_outbox_aside ON hapax_outbox (aside, created_at, seq, event_id);
-- Keys whose rows are not published until an operator decides: the ordering key, or the id of an event without one.
CREATE TABLE hapax_parked (
  okey       BYTES(255) NOT NULL,
  bucket     INT64 NOT NULL,
  created_at TIMESTAMP NOT NULL,
  seq        INT64 NOT NULL,
  event_id   BYTES(16) NOT NULL,
  topic      STRING(255) NOT NULL,
  reason     STRING(MAX) NOT NULL,
  parked_at  TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
  resumed_at TIMESTAMP OPTIONS (allow_commit_timestamp = true),
) PRIMARY KEY (okey);
-- One row, with the id 1; none counts as zeroes. How often relays had to read everything again.
CREATE TABLE hapax_relay (
  id             INT64 NOT NULL,
  openings       INT64 NOT NULL,
  republications INT64 NOT NULL,
) PRIMARY KEY (id);
