-- For each of the buckets @buckets the first @most open rows from its place on: its time is in @times, in microseconds,
-- its number in @seqs, and its event in @events. Leaves out rows without a key of the topics @left_out: the length of
-- the namespace, a colon, the namespace and the topic. With each row its size, and whether its key is parked; with each
-- bucket how often relays were rewound.
@{spanner_emulator.disable_query_null_filtered_index_check=true}
SELECT asked,
       IFNULL((SELECT openings FROM hapax_relay WHERE id = 1), 0),
       IFNULL((SELECT republications FROM hapax_relay WHERE id = 1), 0),
       ARRAY(
         SELECT AS STRUCT UNIX_MICROS(o.created_at), o.seq, o.event_id, o.size,
                EXISTS (SELECT 1 FROM hapax_parked p WHERE p.okey = IFNULL(o.okey, o.event_id))
           FROM hapax_outbox@{FORCE_INDEX=hapax_outbox_open} o
          WHERE o.bucket = asked AND o.is_open = TRUE
            AND o.created_at >= TIMESTAMP_MICROS(@times[OFFSET(place)])
            AND (o.created_at > TIMESTAMP_MICROS(@times[OFFSET(place)]) OR o.seq > @seqs[OFFSET(place)]
                 OR (o.seq = @seqs[OFFSET(place)] AND o.event_id >= @events[OFFSET(place)]))
            AND NOT (o.okey IS NULL
                     AND FORMAT('%d:%s%s', CHAR_LENGTH(o.namespace), o.namespace, o.topic) IN UNNEST(@left_out))
          ORDER BY o.created_at, o.seq, o.event_id
          LIMIT @most
       )
  FROM UNNEST(@buckets) AS asked WITH OFFSET AS place
