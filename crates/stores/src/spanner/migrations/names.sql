-- The tables and the indexes of Hapax.
SELECT table_name
  FROM information_schema.tables
 WHERE table_catalog = '' AND table_schema = '' AND STARTS_WITH(table_name, 'hapax_')
 UNION ALL
SELECT index_name
  FROM information_schema.indexes
 WHERE table_catalog = '' AND table_schema = '' AND STARTS_WITH(index_name, 'hapax_')
