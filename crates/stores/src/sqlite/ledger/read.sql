select open, verdict, rule, fingerprint, answer from hapax_ledger where operation = ?1 and namespace = ?2
