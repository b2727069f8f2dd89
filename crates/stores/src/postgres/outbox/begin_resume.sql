-- Locks a parked key until the commit: no other transaction sets its rows aside.
update hapax_parked set resumed_at = coalesce(resumed_at, pg_catalog.clock_timestamp()) where key = $1 returning key
