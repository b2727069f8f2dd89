-- The condition on `is_unknown` is that of the index, which has only these rows.
select pg_catalog.count(*) as unknown from hapax_record where is_unknown and expires_at > pg_catalog.clock_timestamp()
