select current_setting('server_version_num')::integer as version,
       current_setting('server_version') as version_name,
       pg_is_in_recovery() as is_standby,
       current_setting('fsync') = 'off' as has_no_fsync,
       current_setting('synchronous_commit') = 'off' as has_no_sync,
       current_setting('default_transaction_isolation') as isolation,
       exists (select from pg_class
                where oid in (to_regclass('hapax_record'), to_regclass('hapax_store'))
                  and relpersistence = 'u') as is_unlogged
