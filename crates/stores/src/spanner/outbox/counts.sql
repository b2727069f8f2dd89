-- How many rows are open, @most at most; the oldest one whose key is not parked; how many keys are parked; the time.
@{spanner_emulator.disable_query_null_filtered_index_check=true}
SELECT (SELECT COUNT(*)
          FROM (SELECT bucket FROM hapax_outbox@{FORCE_INDEX=hapax_outbox_open} WHERE is_open = TRUE LIMIT @most)),
       (SELECT MIN(oldest)
          FROM (SELECT (SELECT UNIX_MICROS(o.created_at)
                          FROM hapax_outbox@{FORCE_INDEX=hapax_outbox_open} o
                         WHERE o.bucket = asked AND o.is_open = TRUE
                           AND NOT EXISTS (SELECT 1 FROM hapax_parked p WHERE p.okey = IFNULL(o.okey, o.event_id))
                         ORDER BY o.created_at
                         LIMIT 1) AS oldest
                  FROM UNNEST(GENERATE_ARRAY(0, 63)) AS asked)),
       (SELECT COUNT(*) FROM hapax_parked),
       UNIX_MICROS(CURRENT_TIMESTAMP())
