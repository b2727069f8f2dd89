-- Counts open rows up to ?1, and parked keys. The oldest row is that of those that are counted.
with open as materialized (
    select created_at, coalesce(okey, event_id) as key from hapax_outbox where state = 0 limit ?1
)
select (select count(*) from open),
       (select count(*) from hapax_parked),
       (select min(created_at) from open where not exists (select 1 from hapax_parked p where p.key = open.key))
