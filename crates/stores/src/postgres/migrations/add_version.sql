insert into hapax_migration (version) values ($1)
