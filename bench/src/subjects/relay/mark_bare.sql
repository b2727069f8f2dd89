update bare_outbox set state = 1, published_at = clock_timestamp() where id = any ($1::bigint[])
