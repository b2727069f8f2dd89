update hapax_outbox
   set state = 3, published_at = ?2
 where (id, event_id) = (select row_id, event_id from hapax_parked where key = ?1) and state in (0, 2)
   and (?3 is null or event_id = ?3)
returning event_id
