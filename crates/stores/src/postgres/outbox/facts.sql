-- What the server says about itself, whether the tables are there, and whether the role has the rights of a relay.
with names as materialized (
    select pg_catalog.to_regclass('hapax_outbox')::pg_catalog.oid as outbox,
           pg_catalog.to_regclass('hapax_outbox_id')::pg_catalog.oid as ids,
           pg_catalog.to_regclass('hapax_parked')::pg_catalog.oid as parked,
           pg_catalog.to_regclass('hapax_relay')::pg_catalog.oid as relay
)
select pg_catalog.current_setting('server_version_num')::integer as version,
       pg_catalog.current_setting('server_version') as version_name,
       pg_catalog.pg_is_in_recovery() as is_standby,
       pg_catalog.current_setting('fsync') = 'off' as has_no_fsync,
       pg_catalog.current_setting('synchronous_commit') = 'off' as has_no_sync,
       pg_catalog.current_setting('default_transaction_isolation') as isolation,
       exists (
           select from pg_catalog.pg_class where oid in (outbox, parked, relay) and relpersistence = 'u'
       ) as is_unlogged,
       outbox is not null and ids is not null and parked is not null and relay is not null as has_tables,
       coalesce(
           pg_catalog.has_table_privilege(outbox, 'select') and pg_catalog.has_table_privilege(outbox, 'delete')
           and pg_catalog.has_column_privilege(outbox, 'state', 'update')
           and pg_catalog.has_column_privilege(outbox, 'published_at', 'update')
           and pg_catalog.has_sequence_privilege(ids, 'select')
           and pg_catalog.has_table_privilege(parked, 'select') and pg_catalog.has_table_privilege(parked, 'insert')
           and pg_catalog.has_column_privilege(parked, 'reason', 'update')
           and pg_catalog.has_table_privilege(relay, 'select')
           and pg_catalog.has_function_privilege(
                   pg_catalog.to_regprocedure('hapax_hold_republications()')::pg_catalog.oid, 'execute'), false
       ) as has_rights
  from names
