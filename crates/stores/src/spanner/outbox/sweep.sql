-- At most @most rows that were published or dropped more than @age microseconds ago.
SELECT bucket, UNIX_MICROS(created_at), seq, event_id
  FROM hapax_outbox
 WHERE state IN (1, 3) AND published_at < TIMESTAMP_SUB(CURRENT_TIMESTAMP(), INTERVAL @age MICROSECOND)
 LIMIT @most
