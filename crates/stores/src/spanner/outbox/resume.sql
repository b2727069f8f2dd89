-- The first @most rows of the parked key @okey that were set aside, and how often relays were rewound. One row without
-- a bucket if there is none. No row if the key is not parked.
@{spanner_emulator.disable_query_null_filtered_index_check=true}
SELECT IFNULL((SELECT openings FROM hapax_relay WHERE id = 1), 0),
       IFNULL((SELECT republications FROM hapax_relay WHERE id = 1), 0),
       o.bucket, UNIX_MICROS(o.created_at), o.seq, o.event_id
  FROM hapax_parked AS p
  LEFT JOIN hapax_outbox@{FORCE_INDEX=hapax_outbox_aside} AS o ON o.aside = p.okey AND o.aside IS NOT NULL
 WHERE p.okey = @okey
 ORDER BY o.created_at, o.seq, o.event_id
 LIMIT @most
