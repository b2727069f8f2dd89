-- Keys are hashes, so they spread over the servers. The value is the binary form of a record. Spanner removes a row
-- days after the end of its record, and the store compares that end itself.
CREATE TABLE hapax_record (
  rk         BYTES(16) NOT NULL,
  value      BYTES(2097152) NOT NULL,
  armed_at   TIMESTAMP NOT NULL,
  expires_at TIMESTAMP NOT NULL,
) PRIMARY KEY (rk), ROW DELETION POLICY (OLDER_THAN(expires_at, INTERVAL 1 DAY))
