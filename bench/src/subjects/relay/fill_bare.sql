-- The same events for the bare loop.
insert into bare_outbox (event_id, topic, okey, payload)
select gen_random_uuid(), $1, convert_to('account-' || n % 10000, 'UTF8'),
       convert_to('{"account":"acme-0042","amount":500,"currency":"eur"}', 'UTF8')
  from generate_series(1, $2::bigint) n
