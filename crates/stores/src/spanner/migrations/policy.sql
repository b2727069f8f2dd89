-- When Spanner removes the rows of the records. Null if it never does.
SELECT row_deletion_policy_expression
  FROM information_schema.tables
 WHERE table_catalog = '' AND table_schema = '' AND table_name = 'hapax_record'
