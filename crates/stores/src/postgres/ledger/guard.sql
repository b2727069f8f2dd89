-- What keeps the tables of claims from stopping a COMMIT, a row for each fault.
select 'has a column open that may be null' as fault, t.name
  from (values ('hapax_guard'), ('hapax_open')) t (name)
 where not exists (
           select from pg_catalog.pg_attribute a
            where a.attrelid = pg_catalog.to_regclass(t.name)::pg_catalog.oid
              and a.attname = 'open' and a.attnotnull
       )
 union all
select 'has a column open whose default does not depend on session_replication_role', t.name
  from (values ('hapax_guard'), ('hapax_open')) t (name)
 where not exists (
           select from pg_catalog.pg_attribute a
             join pg_catalog.pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
            where a.attrelid = pg_catalog.to_regclass(t.name)::pg_catalog.oid and a.attname = 'open'
              and pg_catalog.pg_get_expr(d.adbin, d.adrelid) like '%session_replication_role%'
       )
 union all
select 'lacks its foreign key from open to hapax_never, deferred and valid, '
       'or a trigger of the key is disabled or gone',
       t.name
  from (values ('hapax_guard'), ('hapax_open')) t (name)
 where not exists (
           select from pg_catalog.pg_constraint k
             join pg_catalog.pg_attribute a
               on a.attrelid = k.conrelid and a.attname = 'open' and k.conkey operator(pg_catalog.=) array[a.attnum]
            where k.conrelid = pg_catalog.to_regclass(t.name)::pg_catalog.oid
              and k.confrelid = pg_catalog.to_regclass('hapax_never')::pg_catalog.oid
              and k.contype = 'f' and k.condeferrable and k.condeferred and k.convalidated
              and coalesce((pg_catalog.to_jsonb(k) ->> 'conenforced')::boolean, true)
              -- For an insertion and an update here, and an update and a deletion there.
              and (
                      select pg_catalog.count(*)
                        from pg_catalog.pg_trigger g
                       where g.tgconstraint = k.oid and g.tgenabled = 'O'
                  ) = 4
       )
 union all
select 'can have rows', 'hapax_never'
 where pg_catalog.pg_relation_size('hapax_never') > 0
    or not exists (
           select from pg_catalog.pg_constraint k
            where k.conrelid = pg_catalog.to_regclass('hapax_never')::pg_catalog.oid
              and k.contype = 'c' and k.convalidated
              and coalesce((pg_catalog.to_jsonb(k) ->> 'conenforced')::boolean, true)
              and pg_catalog.pg_get_constraintdef(k.oid) = 'CHECK (false)'
       )
