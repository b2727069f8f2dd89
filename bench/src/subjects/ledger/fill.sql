-- Ten million rows in the ledger, and as many bare claim rows. Triggers are off: they would queue a check for each row.
set session_replication_role = replica;
set maintenance_work_mem = '256MB';
alter table hapax_ledger drop constraint hapax_ledger_pkey;
insert into hapax_ledger (operation, namespace, verdict, rule, fingerprint, answer)
select gen_random_uuid(), 'bench', 1, 0, decode(repeat('07', 12), 'hex'), decode(repeat('61', 55), 'hex')
  from generate_series(1, 10000000);
alter table hapax_ledger add primary key (operation, namespace);
alter table bare_claim drop constraint bare_claim_pkey;
insert into bare_claim
select gen_random_uuid(), decode(repeat('07', 12), 'hex'), decode(repeat('61', 55), 'hex')
  from generate_series(1, 10000000);
alter table bare_claim add primary key (operation);
checkpoint;
