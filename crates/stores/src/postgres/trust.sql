-- What lets others change what the statements of this role do. $1 is the schema of the tables and sequences $2. One row
-- for each object that is not ours, for an owner of the schema who is another role, and for each schema in which others
-- may create: the `place` of the latter tells whether it comes before the schema of the system in the search path.
with home as materialized (
    select n.oid, n.nspname, n.nspowner, d.datdba
      from pg_catalog.pg_namespace n, pg_catalog.pg_database d
     where n.nspname = $1 and d.datname = pg_catalog.current_database()
), trusted as materialized (
    select r.oid
      from pg_catalog.pg_roles r, home h
     where r.rolname = current_user
        or pg_catalog.pg_has_role(r.oid, h.nspowner, 'usage') or pg_catalog.pg_has_role(r.oid, h.datdba, 'usage')
), tables as materialized (
    select c.oid, c.relname, c.relkind, c.relowner, c.relrowsecurity
      from pg_catalog.pg_class c, home h
     where c.relnamespace = h.oid and c.relname = any($2)
), path as materialized (
    select p.name, p.place
      from pg_catalog.unnest(pg_catalog.current_schemas(true)) with ordinality p (name, place)
)
select 'owner' as kind, t.relname as object, pg_catalog.pg_get_userbyid(t.relowner) as name, null::bigint as place
  from tables t
 where t.relowner not in (select oid from trusted)
 union all
select 'owner', p.proname, pg_catalog.pg_get_userbyid(p.proowner), null
  from pg_catalog.pg_proc p, home h
 where p.pronamespace = h.oid and p.proowner not in (select oid from trusted)
   and (p.proname, pg_catalog.oidvectortypes(p.proargtypes)) in (
           ('hapax_hold_republications', ''), ('hapax_begin_republication', ''), ('hapax_order', 'bytea'),
           ('hapax_event_id', 'text, uuid, integer'), ('hapax_once', 'text, uuid, text'),
           ('hapax_done', 'text, uuid, bytea'), ('hapax_refuse_event', ''),
           ('hapax_claim', 'text, uuid[]'), ('hapax_claim_one', 'text, uuid'),
           ('hapax_claim_own', 'text, uuid, smallint, bytea'),
           ('hapax_finish', 'tid, text, uuid[], smallint[], smallint[], bytea[], bytea[]'),
           ('hapax_finish_one', 'tid, text, uuid, smallint, smallint, bytea, bytea'),
           ('hapax_emit', 'text, uuid, integer, text, bytea, bytea, text, text, text, jsonb, boolean')
       )
 union all
select 'schema owner', h.nspname, o.rolname, null
  from home h
  join pg_catalog.pg_roles o on o.oid = h.nspowner
 where o.rolname not in (current_user, 'pg_database_owner') and not pg_catalog.pg_has_role(o.oid, h.datdba, 'usage')
 union all
select 'kind', t.relname,
       case t.relkind
           when 'r' then 'a table' when 'p' then 'a partitioned table' when 'S' then 'a sequence' when 'v' then 'a view'
           when 'm' then 'a materialized view' when 'i' then 'an index' else 'of another kind'
       end::pg_catalog.name, null
  from tables t
 where t.relkind
       <> case when t.relname in ('hapax_outbox_id', 'hapax_dead_number') then 'S' else 'r' end::pg_catalog."char"
 union all
select 'trigger', t.relname, g.tgname, null
  from tables t
  join pg_catalog.pg_trigger g on g.tgrelid = t.oid
  join pg_catalog.pg_proc f on f.oid = g.tgfoid
 where not g.tgisinternal
   and not (t.relname = 'hapax_outbox' and g.tgname = 'hapax_outbox_attributes' and f.proname = 'hapax_refuse_event'
            and f.pronamespace in (select oid from home) and f.proowner in (select oid from trusted)
            -- Before each row that is inserted, under the condition of 0006_outbox_attributes.sql. PostgreSQL records
            -- no dependency on the functions and operators of the system, and one on all others.
            and g.tgtype = 7::smallint and g.tgnargs = 0::smallint
            and pg_catalog.split_part(pg_catalog.split_part(
                    pg_catalog.replace(pg_catalog.replace(
                        pg_catalog.pg_get_triggerdef(g.oid), 'pg_catalog.', ''), 'OPERATOR(>)', '>'
                    ), ' WHEN ', 2), ' EXECUTE ', 1)
                = '(((octet_length(new.namespace) > 255) OR (octet_length(new.type) > 255)'
                  ' OR (octet_length(new.source) > 255) OR (octet_length(new.content_type) > 255)))'
            and not exists (
                    select from pg_catalog.pg_depend d
                     where d.classid = 'pg_catalog.pg_trigger'::pg_catalog.regclass::pg_catalog.oid
                       and d.objid = g.oid and d.refobjid not in (t.oid, f.oid)
                ))
 union all
select 'rule', t.relname, r.rulename, null from tables t join pg_catalog.pg_rewrite r on r.ev_class = t.oid
 union all
select 'policy', t.relname, p.polname, null from tables t join pg_catalog.pg_policy p on p.polrelid = t.oid
 union all
select 'row security', t.relname, t.relname, null from tables t where t.relrowsecurity
 union all
select 'schema', n.nspname, n.nspname, p.place - (select place from path where name = 'pg_catalog')
  from pg_catalog.pg_namespace n
  left join path p on p.name = n.nspname
 where (p.name is not null or n.nspname = $1)
   and exists (
           select from pg_catalog.aclexplode(coalesce(n.nspacl, pg_catalog.acldefault('n', n.nspowner))) a
             left join pg_catalog.pg_roles r on r.oid = a.grantee
            where a.privilege_type = 'CREATE'
              and (a.grantee <> n.nspowner
                   or n.nspname <> $1 and r.rolname <> 'pg_database_owner'
                      and a.grantee not in (select datdba from home))
              and coalesce(not r.rolsuper and r.rolname <> current_user, true)
       )
