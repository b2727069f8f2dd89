select version, coalesce(needs, version) as needs from hapax_migration
