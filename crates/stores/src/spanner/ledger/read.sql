-- The rows of the operations @operations, and those of them that are closed, with the verdict -1. The keys stay locked
-- until the end of the transaction.
@{LOCK_SCANNED_RANGES=exclusive}
SELECT operation, verdict, rule, fingerprint, run, answer
  FROM hapax_ledger
 WHERE operation IN UNNEST(@operations) AND namespace = @namespace
 UNION ALL
SELECT operation, -1, 0, b'', 0, CAST(NULL AS BYTES)
  FROM hapax_attempt
 WHERE operation IN UNNEST(@operations) AND namespace = @namespace AND dead_at IS NOT NULL
