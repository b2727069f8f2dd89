-- Which rows of the tables of Hapax Spanner removes, for each table with a row deletion policy.
SELECT table_name, row_deletion_policy_expression
  FROM information_schema.tables
 WHERE table_catalog = '' AND table_schema = '' AND STARTS_WITH(table_name, 'hapax_')
   AND row_deletion_policy_expression IS NOT NULL
