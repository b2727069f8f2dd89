-- A window of rows in the order of the file: no index on expiry, which every begin and completion would have to pay for.
select id, expires_at <= ?3 from hapax_record where id > ?1 order by id limit ?2
