-- The tables of a build before the first release lack the column.
select version, coalesce((to_jsonb(applied) ->> 'needs')::integer, version) as needs from hapax_migration as applied
