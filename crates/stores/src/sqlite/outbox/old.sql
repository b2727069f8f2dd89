-- Rows from ?1 to ?2 that were published or dropped before ?3.
select id from hapax_outbox where id between ?1 and ?2 and state in (1, 3) and published_at < ?3 limit ?4
