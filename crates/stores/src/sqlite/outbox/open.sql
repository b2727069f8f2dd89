-- The ids and sizes of open rows.
select id, length(payload) + length(cast(headers as blob))
  from hapax_outbox
 where state = 0 and bucket = ?1 and id > ?2
 order by id
 limit ?3
