-- The columns of the primary key of the table of the records.
SELECT column_name
  FROM information_schema.index_columns
 WHERE table_catalog = '' AND table_schema = '' AND table_name = 'hapax_record' AND index_name = 'PRIMARY_KEY'
 ORDER BY ordinal_position
