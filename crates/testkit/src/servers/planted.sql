-- What a role could create in a schema of another role's search path, so that a statement of that role calls it: each
-- function of the system once more, a type with the name of each type and table of the system, and operators for pairs
-- of types for which the system has only one that converts them. A function that takes the name of a table is there
-- with a text, too: a literal is a text rather than a name. Each call counts, and fails.
create schema planted;
create sequence planted.calls;
grant usage on schema planted to public;
grant usage on sequence planted.calls to public;

do $do$
declare
    body    constant text := 'begin perform pg_catalog.nextval(''planted.calls''); raise exception %L; end';
    kinds   constant regtype[] := array[
        'bool', 'int2', 'int4', 'int8', 'float8', 'numeric', 'text', 'name', '"char"', 'bytea', 'uuid', 'timestamp',
        'timestamptz', 'interval', 'jsonb', 'oid', 'regclass', 'tid', 'xid8', 'text[]', 'int8[]', 'bytea[]', 'uuid[]'
    ];
    signs   constant text[] := '{=,<>,<,<=,>,>=,+,-,*,/,%,&,|,||,~~}';
    one     record;
    planted text;
begin
    for one in
        select p.proname, p.oid::regprocedure::text as signature, pg_get_function_arguments(p.oid) as arguments,
               case when t.typtype = 'p' then 'void'
                    else case when p.proretset then 'setof ' else '' end || format_type(t.oid, null) end as result
          from pg_proc p join pg_type t on t.oid = p.prorettype
         where p.pronamespace = 'pg_catalog'::regnamespace and p.prokind <> 'p'
    loop
        -- No function in SQL or PL/pgSQL takes "any".
        planted := regexp_replace(one.arguments, 'VARIADIC "any"', 'VARIADIC anyarray');
        planted := regexp_replace(replace(planted, '"any"', 'anyelement'), ',? *\mOUT .*$', '');
        foreach planted in array array[planted, replace(planted, 'regclass', 'text')] loop
            begin
                execute format('create function planted.%I(%s) returns %s language plpgsql as %L', one.proname,
                               planted, one.result,
                               format(body, 'the planted function ' || one.signature || ' was called'));
            exception when others then
                -- It is there, or takes an internal type, so that no statement can call it.
                continue;
            end;
        end loop;
    end loop;
    for one in
        select l.kind as l, r.kind as r from unnest(kinds) l (kind), unnest(kinds) r (kind)
    loop
        planted := format('the planted operator for %s and %s was called', one.l, one.r);
        execute format('create function planted.operation(%s, %s) returns bool language plpgsql as %L', one.l, one.r,
                       format(body, planted));
        for planted in
            select sign from unnest(signs) s (sign)
             where not exists (select from pg_operator where oprname = sign and oprleft = one.l and oprright = one.r)
        loop
            execute format('create operator planted.%s (leftarg = %s, rightarg = %s, function = planted.operation)',
                           planted, one.l, one.r);
        end loop;
    end loop;
    for one in select typname from pg_type where typnamespace = 'pg_catalog'::regnamespace and typname !~ '^_' loop
        execute format('create type planted.%I as ()', one.typname);
    end loop;
end
$do$;
