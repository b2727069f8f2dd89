select id from hapax_outbox where event_id = ?1
