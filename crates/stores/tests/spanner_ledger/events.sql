SELECT namespace, TO_HEX(operation), TO_HEX(event_id), CAST(n AS STRING), CAST(LENGTH(payload) AS STRING)
  FROM hapax_outbox
 ORDER BY created_at, seq
