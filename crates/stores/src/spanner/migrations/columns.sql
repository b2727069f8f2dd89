-- The columns of the table of the records. No row if there is no such table.
SELECT column_name, spanner_type
  FROM information_schema.columns
 WHERE table_catalog = '' AND table_schema = '' AND table_name = 'hapax_record'
 ORDER BY ordinal_position
