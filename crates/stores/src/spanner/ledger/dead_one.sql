-- Whether the operation @operation is closed.
SELECT operation
  FROM hapax_attempt
 WHERE operation = @operation AND namespace = @namespace AND dead_at IS NOT NULL
