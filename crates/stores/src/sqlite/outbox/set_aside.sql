update hapax_outbox as o
   set state = 2
 where id = ?1 and event_id = ?2 and state = 0
   and exists (select 1 from hapax_parked p where p.key = coalesce(o.okey, o.event_id) and p.resumed_at is null)
