select max(id) from hapax_ledger
