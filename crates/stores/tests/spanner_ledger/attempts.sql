SELECT namespace, TO_HEX(operation), CAST(attempts AS STRING), IF(dead_at IS NULL, '0', '1') FROM hapax_attempt
