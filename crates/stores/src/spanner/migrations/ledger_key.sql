-- The columns of the primary key of the ledger.
SELECT column_name
  FROM information_schema.index_columns
 WHERE table_catalog = '' AND table_schema = '' AND table_name = 'hapax_ledger' AND index_name = 'PRIMARY_KEY'
 ORDER BY column_name
