select pg_catalog.current_setting('server_version_num')::integer as version,
       pg_catalog.current_setting('server_version') as version_name,
       pg_catalog.pg_is_in_recovery() as is_standby,
       pg_catalog.current_setting('fsync') = 'off' as has_no_fsync,
       pg_catalog.current_setting('synchronous_commit') = 'off' as has_no_sync,
       pg_catalog.current_setting('max_locks_per_transaction')::bigint
           * (pg_catalog.current_setting('max_connections')::bigint
              + pg_catalog.current_setting('max_prepared_transactions')::bigint)
           as locks,
       exists (
           select from pg_catalog.pg_class
            where oid in (pg_catalog.to_regclass('hapax_ledger')::pg_catalog.oid,
                          pg_catalog.to_regclass('hapax_attempt')::pg_catalog.oid,
                          pg_catalog.to_regclass('hapax_outbox')::pg_catalog.oid)
              and relpersistence = 'u'
       ) as is_unlogged
