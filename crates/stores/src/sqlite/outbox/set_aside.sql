update hapax_outbox
   set state = 2
 where id = ?1 and state = 0
   and exists (select 1 from hapax_parked where key = coalesce(okey, event_id) and resumed_at is null)
