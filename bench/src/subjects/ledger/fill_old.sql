truncate hapax_ledger, hapax_outbox;

insert into hapax_ledger (operation, namespace, verdict, rule, fingerprint, answer, created_at)
select gen_random_uuid(), 'bench', 1, 0, decode(repeat('00', 12), 'hex'), 'done',
       clock_timestamp() - interval '2 hours'
  from generate_series(1, 100000);

checkpoint;
