-- Opens the first $2 rows of the key $1 that were set aside.
with aside as materialized (
    select id
      from hapax_outbox
     where state = 2 and coalesce(okey, pg_catalog.uuid_send(event_id)) = $1
     order by coalesce(okey, pg_catalog.uuid_send(event_id)), id
     limit $2
)
update hapax_outbox o set state = 0 from aside where o.id = aside.id and o.state = 2 returning o.id
