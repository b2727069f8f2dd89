update hapax_outbox set state = 1, published_at = ?2 where id = ?1 and state = 0
