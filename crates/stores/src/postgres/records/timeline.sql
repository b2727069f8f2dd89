-- Names the history of the server: its cluster, and the timeline on which it writes. The promotion of a standby and a
-- recovery to a point in time begin a new timeline. Null on a standby.
select case when not pg_catalog.pg_is_in_recovery() then
           (select system_identifier::pg_catalog.text from pg_catalog.pg_control_system())
               || ' ' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8)
       end as timeline
