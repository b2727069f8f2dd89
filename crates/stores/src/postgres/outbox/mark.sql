-- Makes the open rows $1 with the events $2 published, unless a republication has begun since there were $3 rewinds:
-- see republish.sql for the lower 32 bits. A crash of the server may forget it: then they are published again, under
-- the same ids. So the commit does not wait for the disk. It fails where it would wait for another transaction;
-- mark_unlocked.sql passes over such rows. The arrays and the state hide in selects: otherwise the plan could go
-- through the index of open rows once for each id.
with marked as (
    update hapax_outbox o
       set state = 1, published_at = clock_timestamp()
      from unnest((select $1::bigint[]), (select $2::uuid[])) a (id, event_id)
     where (select set_config('lock_timeout', '100ms', true)) is not null
       and (select rewinds % 4294967296 from hapax_relay) = $3 % 4294967296
       and o.id = a.id and o.event_id = a.event_id and o.state = (select 0::smallint)
    returning o.id
)
select count(*) as marked,
       (select rewinds % 4294967296 from hapax_relay) is distinct from $3 % 4294967296 as is_rewound,
       set_config('synchronous_commit', 'off', true)
  from marked
