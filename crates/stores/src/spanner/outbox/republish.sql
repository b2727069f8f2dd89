-- The next @most rows behind a place of all buckets, which has the time @time in microseconds, the number @seq and the
-- event @event; whether each was published from @since on and before @until; and how often relays were rewound.
SELECT found.bucket, found.created_at, found.seq, found.event_id, found.is_meant,
       IFNULL((SELECT openings FROM hapax_relay WHERE id = 1), 0),
       IFNULL((SELECT republications FROM hapax_relay WHERE id = 1), 0)
  FROM UNNEST(GENERATE_ARRAY(0, 63)) AS asked,
       UNNEST(ARRAY(
         SELECT AS STRUCT o.bucket, UNIX_MICROS(o.created_at) AS created_at, o.seq, o.event_id,
                o.state = 1 AND IFNULL(o.published_at >= TIMESTAMP_MICROS(@since)
                                       AND o.published_at < TIMESTAMP_MICROS(@until), FALSE) AS is_meant
           FROM hapax_outbox o
          WHERE o.bucket = asked
            AND o.created_at >= TIMESTAMP_MICROS(@time)
            AND (o.created_at > TIMESTAMP_MICROS(@time) OR o.seq > @seq OR (o.seq = @seq AND o.event_id >= @event))
          ORDER BY o.created_at, o.seq, o.event_id
          LIMIT @most
       )) AS found
 ORDER BY found.created_at, found.seq, found.event_id
 LIMIT @most
