-- One process at a time migrates. A role without rights on the table cannot take this lock.
lock table hapax_migration in exclusive mode
