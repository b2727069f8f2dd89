update hapax_outbox
   set state = 0
 where id in (select id from hapax_outbox where state = 2 and coalesce(okey, event_id) = ?1 order by id limit ?2)
