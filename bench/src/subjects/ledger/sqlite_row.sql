insert into hapax_ledger (operation, namespace, open, verdict, rule, fingerprint, created_at, answer)
values (?1, 'bench', null, 1, 1, ?2, 0, ?3)
