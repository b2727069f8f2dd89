select id, event_id, okey, payload from bare_outbox where state = 0 and id > $1 order by id limit $2
