update hapax_outbox set state = 1, published_at = ?3 where id = ?1 and event_id = ?2 and state = 0
