select exists (select 1 from hapax_outbox where id = ?1 and event_id = ?2 and state in (0, 2))
