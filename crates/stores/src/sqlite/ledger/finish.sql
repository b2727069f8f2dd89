update hapax_ledger set open = null, verdict = ?3, answer = ?4 where operation = ?1 and namespace = ?2 and open = 1
