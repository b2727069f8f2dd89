select mark from hapax_store where id = 1
