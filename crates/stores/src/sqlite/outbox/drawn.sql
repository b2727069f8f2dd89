select coalesce((select seq from sqlite_sequence where name = 'hapax_outbox'), 0)
