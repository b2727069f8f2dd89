-- Emits $2 events to the topic $1, under 10,000 ordering keys.
insert into hapax_outbox (event_id, namespace, topic, okey, type, content_type, payload)
select gen_random_uuid(), 'bench', $1, convert_to('account-' || n % 10000, 'UTF8'), 'com.example.paid',
       'application/json', convert_to('{"account":"acme-0042","amount":500,"currency":"eur"}', 'UTF8')
  from generate_series(1, $2::bigint) n
