-- The tables of a build before the first release lack the column.
select version,
       coalesce((pg_catalog.to_jsonb(applied) operator(pg_catalog.->>) 'needs'::pg_catalog.text)::pg_catalog.int4,
                version) as needs
  from hapax_migration as applied
