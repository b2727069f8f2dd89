-- The rows of the operations @operations, of every namespace.
SELECT operation, namespace, verdict, rule, fingerprint
  FROM hapax_ledger
 WHERE operation IN UNNEST(@operations) AND verdict IS NOT NULL
