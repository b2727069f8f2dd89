-- The id of a new transaction, and the oldest one that has not ended.
select pg_current_xact_id()::text::bigint as stamp, pg_snapshot_xmin(pg_current_snapshot())::text::bigint as settled
