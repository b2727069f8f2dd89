select version from hapax_store where id = 1
