delete from hapax_queue_event where queue = ?1 and event_id = ?2 and republications = ?3
