-- The id of a new transaction, and the oldest one that has not ended.
select pg_catalog.pg_current_xact_id()::pg_catalog.text::bigint as stamp,
       pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::pg_catalog.text::bigint as settled
