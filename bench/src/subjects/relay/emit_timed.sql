-- Emits $3 events to the topic $1. The payload $2 says when.
select hapax_emit('bench', null, null, $1, $2, okey => convert_to('account-' || ($4 + n) % 10000, 'UTF8'))
  from generate_series(1, $3::bigint) n
