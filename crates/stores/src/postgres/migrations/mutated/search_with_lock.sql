    select (select pg_catalog.array_agg(u.operation)
              from pg_catalog.unnest(operations) u (operation)
             where not pg_catalog.pg_try_advisory_xact_lock(pg_catalog.uuid_hash_extended(u.operation, seed))),
           pg_catalog.array_agg(e.operation)
      into busy, ended
