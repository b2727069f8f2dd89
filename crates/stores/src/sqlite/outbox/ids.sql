select min(id), max(id) from hapax_outbox
