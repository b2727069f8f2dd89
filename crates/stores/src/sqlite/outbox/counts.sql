select (select count(*) from (select 1 from hapax_outbox where state = 0 limit ?1)),
       (select count(*) from hapax_parked),
       (
           select min(created_at)
             from hapax_outbox
            where state = 0 and not exists (select 1 from hapax_parked where key = coalesce(okey, event_id))
       )
