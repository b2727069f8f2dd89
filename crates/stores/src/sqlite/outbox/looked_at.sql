-- The last of the ?2 rows behind ?1.
select max(id) from (select id from hapax_outbox where id > ?1 order by id limit ?2)
