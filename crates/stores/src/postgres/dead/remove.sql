-- What may be written to the letter, then its removal.
with found as materialized (
    select id, number, at, marked_at, taken_until from hapax_dead where id = $1 for update
), judged as materialized (
    select id, taken_until,
        case
            when number <> $2 or at <> $4 or marked_at is distinct from $3 then 'stale'
            when taken_until > pg_catalog.clock_timestamp() then 'taken'
            else 'write'
        end as change
    from found
), removed as (
    delete from hapax_dead d using judged j where d.id = j.id and j.change = 'write'
)
select change, taken_until from judged
