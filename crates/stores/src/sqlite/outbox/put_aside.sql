update hapax_outbox set state = 2 where id = ?1 and event_id = ?2 and state = 0
