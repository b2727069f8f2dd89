-- One process at a time migrates. The number is "hapax" in ASCII.
select pg_catalog.pg_advisory_xact_lock(448311353720)
