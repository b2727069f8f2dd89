select current_setting('server_version_num')::integer as version,
       current_setting('server_version') as version_name,
       pg_is_in_recovery() as is_standby,
       current_setting('fsync') = 'off' as has_no_fsync,
       current_setting('synchronous_commit') = 'off' as has_no_sync,
       current_setting('max_locks_per_transaction')::bigint
           * (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint)
           as locks,
       exists (
           select from pg_class
            where oid in (to_regclass('hapax_ledger'), to_regclass('hapax_attempt'), to_regclass('hapax_outbox'))
              and relpersistence = 'u'
       ) as is_unlogged
