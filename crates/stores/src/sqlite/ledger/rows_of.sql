select namespace, rule, fingerprint, verdict from hapax_ledger where operation = ?1 and verdict is not null
