-- The rows of the operations $1 in every namespace.
select operation, namespace, rule, fingerprint, verdict from hapax_ledger where operation = any($1)
