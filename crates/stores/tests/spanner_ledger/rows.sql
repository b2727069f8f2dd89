SELECT namespace, TO_HEX(operation), IF(open IS NULL, '0', '1'), IFNULL(CAST(verdict AS STRING), ''),
       IFNULL(SAFE_CONVERT_BYTES_TO_STRING(answer), '')
  FROM hapax_ledger
