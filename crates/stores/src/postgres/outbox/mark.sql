-- Makes the open rows $1 published. A crash of the server may forget it: then they are published again, under the same
-- ids. So the commit does not wait for the disk. The array and the state hide in selects: otherwise the plan could go
-- through the index of open rows once for each id.
with marked as (
    update hapax_outbox
       set state = 1, published_at = clock_timestamp()
     where id = any (array (select unnest($1::bigint[]))) and state = (select 0::smallint)
    returning id
)
select count(*) as marked, set_config('synchronous_commit', 'off', true) from marked
