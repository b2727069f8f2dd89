-- What may be written to the letter, then the write. A letter that is marked already, with that word, is left alone.
with found as materialized (
    select id, number, at, marked_at, taken_until, operation, namespace, reason,
        case when reason = any($5) then $4 else reason end as next
    from hapax_dead
    where id = $1
    for update
), judged as materialized (
    select id, taken_until, operation, namespace, next,
        case
            when number <> $2 or at <> $6 then 'stale'
            when marked_at is not null and reason = next then 'yes'
            when marked_at is distinct from $3 then 'stale'
            when taken_until > pg_catalog.clock_timestamp() then 'taken'
            else 'write'
        end as change
    from found
), marked as (
    update hapax_dead d
    set marked_at = greatest(pg_catalog.clock_timestamp(), d.marked_at + interval '1 microsecond'),
        free_at = pg_catalog.clock_timestamp(), reason = j.next
    from judged j
    where d.id = j.id and j.change = 'write'
), reopened as (
    delete from hapax_attempt a
    using judged j
    where a.operation = j.operation and a.namespace = j.namespace and j.change = 'write'
)
select change, taken_until from judged
