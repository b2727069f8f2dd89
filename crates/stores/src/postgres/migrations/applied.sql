select version from hapax_migration
