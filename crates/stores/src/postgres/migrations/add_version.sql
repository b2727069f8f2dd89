insert into hapax_migration (version, needs) values ($1, $2)
