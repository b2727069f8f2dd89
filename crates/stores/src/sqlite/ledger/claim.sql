insert into hapax_ledger (operation, namespace, rule, fingerprint, created_at)
select ?1, ?2, ?3, ?4, cast(unixepoch('subsec') * 1000 as integer)
where not exists (
    select 1 from hapax_attempt where operation = ?1 and namespace = ?2 and dead_at is not null
)
on conflict (operation, namespace) do nothing
