with free as materialized (
    select id from hapax_dead
    where source = $1 and marked_at is not null and free_at <= pg_catalog.clock_timestamp()
    order by marked_at
    limit $2
    for update skip locked
), taken as (
    update hapax_dead d
    set free_at = pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => $3),
        taken_until = pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => $3)
    from free
    where d.id = free.id
    returning d.*
)
select * from taken order by marked_at
