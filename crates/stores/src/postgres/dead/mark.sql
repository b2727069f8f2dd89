with marked as (
    update hapax_dead
    set marked_at = coalesce(marked_at, pg_catalog.clock_timestamp()),
        free_at = coalesce(free_at, pg_catalog.clock_timestamp()),
        reason = case when reason = $2 then $3 else reason end
    where id = $1
    returning operation, namespace
), reopened as (
    delete from hapax_attempt a using marked m where a.operation = m.operation and a.namespace = m.namespace
)
select 1 from marked
