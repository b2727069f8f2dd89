-- Sets the open rows $1 aside whose keys are parked. The locks keep a resumption of these keys away until the commit.
-- The array and the state hide in selects, as in mark.sql.
with asked as materialized (
    select id, coalesce(okey, uuid_send(event_id)) as key
      from hapax_outbox
     where id = any (array (select unnest($1::bigint[])))
), locked as materialized (
    select p.key
      from hapax_parked p
     where p.resumed_at is null and p.key in (select key from asked)
     order by p.key
       for share
)
update hapax_outbox o
   set state = 2
 where o.id = any (array (select a.id from asked a join locked l on l.key = a.key))
   and o.state = (select 0::smallint)
