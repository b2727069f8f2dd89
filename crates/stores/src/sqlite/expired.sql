-- Reads a window of rows in id order. There is no index on expires_at: every begin and completion would have to update
-- it.
select id, expires_at <= ?3 from hapax_record where id > ?1 order by id limit ?2
