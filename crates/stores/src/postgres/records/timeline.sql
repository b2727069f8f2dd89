-- Names the history of the server: its cluster, and the timeline on which it writes. A promotion and the restoration of
-- a backup begin a new timeline. Null on a standby.
select case when not pg_is_in_recovery() then
           (select system_identifier::text from pg_control_system())
               || ' ' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)
       end as timeline
