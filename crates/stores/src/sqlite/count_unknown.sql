-- The condition on `state` is that of the index, which has only these rows.
select count(*) from hapax_record where state = 4 and expires_at > ?1
