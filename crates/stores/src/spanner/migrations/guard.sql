-- Whether a claim that is not finished cannot be committed: the ledger refers to the empty table.
SELECT constraint_name
  FROM information_schema.table_constraints
 WHERE table_schema = '' AND table_name = 'hapax_ledger' AND constraint_name = 'hapax_ledger_open'
   AND constraint_type = 'FOREIGN KEY'
