-- What the server says about itself, whether the tables are there, and whether the role has the rights of a relay.
with names as materialized (
    select to_regclass('hapax_outbox') as outbox, to_regclass('hapax_outbox_id') as ids,
           to_regclass('hapax_parked') as parked, to_regclass('hapax_relay') as relay
)
select current_setting('server_version_num')::integer as version,
       current_setting('server_version') as version_name,
       pg_is_in_recovery() as is_standby,
       current_setting('fsync') = 'off' as has_no_fsync,
       current_setting('synchronous_commit') = 'off' as has_no_sync,
       exists (select from pg_class where oid in (outbox, parked, relay) and relpersistence = 'u') as is_unlogged,
       outbox is not null and ids is not null and parked is not null and relay is not null as has_tables,
       coalesce(
           has_table_privilege(outbox, 'select') and has_table_privilege(outbox, 'delete')
           and has_column_privilege(outbox, 'state', 'update')
           and has_column_privilege(outbox, 'published_at', 'update')
           and has_sequence_privilege(ids, 'select')
           and has_table_privilege(parked, 'select') and has_table_privilege(parked, 'insert')
           and has_column_privilege(parked, 'reason', 'update')
           and has_table_privilege(relay, 'select'), false
       ) as has_rights
  from names
