delete from hapax_outbox where id = ?1 and state in (1, 3)
