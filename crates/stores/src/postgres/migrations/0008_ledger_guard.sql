-- A row of the ledger is written once, at its end. Until this version, a claim was a row that was open: here its column
-- goes, with its default and its constraints, so that a process of an older release fails. Its rows stay as they are,
-- and no row is rewritten. There is nothing to do where 0002 has created the table as it is now.
do $$
declare
    timeout constant text := pg_catalog.current_setting('lock_timeout');
    holders text;
begin
    perform from pg_catalog.pg_attribute a
      where a.attrelid = 'hapax_ledger'::regclass::oid and a.attname = 'open' and not a.attisdropped;
    if not found then
        return;
    end if;
    perform from hapax_ledger l where l.open is not null;
    if found then
        raise exception 'hapax_ledger has a claim that was committed without its end'
            using errcode = '55000',
                  hint = 'A superuser without triggers wrote it. Find out if its effect is there. If so, set `verdict` '
                         'to 1, `answer` to its response and `open` to null; if not, delete the row.';
    end if;
    -- Whoever uses the table later waits behind this lock.
    perform pg_catalog.set_config('lock_timeout', '2s', true);
    begin
        lock table hapax_ledger, hapax_never in access exclusive mode;
    exception when lock_not_available then
        select pg_catalog.string_agg(
                   distinct case when l.pid is null then 'the prepared transaction ' || p.gid
                                 else 'session ' || l.pid::text end,
                   ', '
               )
          into holders
          from pg_catalog.pg_locks l
          left join pg_catalog.pg_locks x
            on x.virtualtransaction = l.virtualtransaction and x.pid is null and x.locktype = 'transactionid'
          left join pg_catalog.pg_prepared_xacts p on p.transaction = x.transactionid
          join pg_catalog.pg_database d on d.oid = l.database and d.datname = pg_catalog.current_database()
         where l.relation in ('hapax_ledger'::regclass::oid, 'hapax_never'::regclass::oid) and l.granted
           and l.pid is distinct from pg_catalog.pg_backend_pid();
        raise exception 'hapax_ledger cannot be changed, because it is in use by %', coalesce(holders, 'others')
            using errcode = '55006', hint = 'End them, or migrate when they have ended.';
    end;
    perform pg_catalog.set_config('lock_timeout', timeout, true);
    alter table hapax_ledger
        drop column open,
        drop constraint if exists hapax_ledger_verdict_check,
        drop constraint if exists hapax_ledger_namespace_check,
        drop constraint if exists hapax_ledger_fingerprint_check,
        drop constraint if exists hapax_ledger_check1,
        reset (fillfactor);
end
$$;

-- The claim of a runner: one row for the whole transaction, which cannot be committed with it, because `open` refers to
-- a table without rows, and the reference is checked at COMMIT. `operations` is a hash of the claimed ones: all of them
-- have to be finished together. Without triggers the reference is not checked: `open` then has no default, so that no
-- claim is made. No row outlives its transaction, so the table has no log, and a crash empties it.
create unlogged table hapax_guard (
    xact       xid8 not null default pg_current_xact_id(),
    operations bigint not null,
    open       smallint not null
               default (case when pg_catalog.current_setting('session_replication_role') <> 'replica' then 1 end),
    constraint hapax_guard_is_finished foreign key (open) references hapax_never deferrable initially deferred
) with (
    autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);

-- The claim of one operation in a transaction of a service, with what its row will have.
create unlogged table hapax_open (
    xact        xid8 not null default pg_current_xact_id(),
    operation   uuid not null,
    open        smallint not null
                default (case when pg_catalog.current_setting('session_replication_role') <> 'replica' then 1 end),
    rule        smallint not null,
    namespace   text collate "C" not null,
    fingerprint bytea not null,
    primary key (operation, namespace),
    constraint hapax_open_is_finished foreign key (open) references hapax_never deferrable initially deferred
) with (
    autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);

-- The functions of a runner name everything with its schema, also operators: a search path would have to be set for
-- each call. Lock and search are statements of their own, so that under READ COMMITTED the search sees what a twin has
-- committed before it gave the lock back. Plans are kept for as long as the connection: they use the key, however small
-- the tables were when they were made. Ledgers of one database lock apart: the table's own number is part of the lock.

-- Claims an operation for a runner, as `hapax_claim` does. Null: another transaction holds its lock. (0,0): it has a
-- row, or is dead. Otherwise the place of the guard.
create function hapax_claim_one(namespace text, operation uuid) returns tid
language plpgsql volatile parallel unsafe
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
    seed  constant bigint :=
        pg_catalog.hashtextextended(namespace, '"SCHEMA".hapax_ledger'::pg_catalog.regclass::pg_catalog.oid::bigint);
    guard pg_catalog.tid;
begin
    if not pg_catalog.pg_try_advisory_xact_lock(pg_catalog.uuid_hash_extended(operation, seed)) then
        return null;
    end if;
    insert into "SCHEMA".hapax_guard (operations)
    select pg_catalog.hash_array_extended(array[operation], seed)
     where not exists (
               select from "SCHEMA".hapax_ledger l
                where l.operation operator(pg_catalog.=) operation and l.namespace operator(pg_catalog.=) namespace
           )
       and not exists (
               select from "SCHEMA".hapax_attempt a
                where a.operation operator(pg_catalog.=) operation and a.namespace operator(pg_catalog.=) namespace
                  and a.dead_at is not null
           )
    returning ctid into guard;
    return coalesce(guard, '(0,0)'::pg_catalog.tid);
end
$$;

-- Finishes the operation of `hapax_claim_one`, and writes its row.
create function hapax_finish_one(
    guard tid, namespace text, operation uuid, verdict smallint, rule smallint, fingerprint bytea, answer bytea
) returns void
language plpgsql volatile parallel unsafe
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
    number constant bigint := pg_catalog.hash_array_extended(
        array[operation],
        pg_catalog.hashtextextended(namespace, '"SCHEMA".hapax_ledger'::pg_catalog.regclass::pg_catalog.oid::bigint)
    );
begin
    with claim as (
        delete from "SCHEMA".hapax_guard g
         where g.ctid operator(pg_catalog.=) guard
           and g.xact operator(pg_catalog.=) pg_catalog.pg_current_xact_id()
           and g.operations operator(pg_catalog.=) number
        returning 1
    )
    insert into "SCHEMA".hapax_ledger (operation, namespace, verdict, rule, fingerprint, answer)
    select operation, namespace, verdict, rule, fingerprint, answer from claim;
    if not found then
        raise exception 'this transaction has no open claim of the operation %', operation
            using errcode = '55000', hint = 'Roll back. The claim was rolled back, or the transaction has ended since.';
    end if;
end
$$;

-- Claims the operations of a runner, each of which is there once, in ascending order. `busy`: another transaction holds
-- their locks. `ended`: they have a row, or are dead. The guard stands for the others. It is null if there are none.
create function hapax_claim(namespace text, operations uuid[], out guard tid, out busy uuid[], out ended uuid[])
language plpgsql volatile parallel unsafe
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
    seed  constant bigint :=
        pg_catalog.hashtextextended(namespace, '"SCHEMA".hapax_ledger'::pg_catalog.regclass::pg_catalog.oid::bigint);
    fresh pg_catalog.uuid[] := operations;
begin
    select pg_catalog.array_agg(u.operation)
      into busy
      from pg_catalog.unnest(operations) u (operation)
     where not pg_catalog.pg_try_advisory_xact_lock(pg_catalog.uuid_hash_extended(u.operation, seed));
    select pg_catalog.array_agg(e.operation)
      into ended
      from (
          select l.operation
            from "SCHEMA".hapax_ledger l
           where l.operation operator(pg_catalog.=) any (operations)
             and l.namespace operator(pg_catalog.=) namespace
           union all
          select a.operation
            from "SCHEMA".hapax_attempt a
           where a.operation operator(pg_catalog.=) any (operations)
             and a.namespace operator(pg_catalog.=) namespace
             and a.dead_at is not null
      ) e;
    if busy is not null or ended is not null then
        fresh := array(
            select u.operation from pg_catalog.unnest(operations) u (operation)
            except
            (select b.operation from pg_catalog.unnest(busy) b (operation)
              union all
             select e.operation from pg_catalog.unnest(ended) e (operation))
             order by 1
        );
    end if;
    if fresh operator(pg_catalog.<>) '{}'::pg_catalog.uuid[] then
        insert into "SCHEMA".hapax_guard (operations)
        values (pg_catalog.hash_array_extended(fresh, seed))
        returning ctid into guard;
    end if;
end
$$;

-- Finishes all operations for which the guard stands, in ascending order, and writes their rows.
create function hapax_finish(
    guard tid, namespace text, operations uuid[], verdicts smallint[], rules smallint[], fingerprints bytea[],
    answers bytea[]
) returns void
language plpgsql volatile parallel unsafe
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
    number constant bigint := pg_catalog.hash_array_extended(
        operations,
        pg_catalog.hashtextextended(namespace, '"SCHEMA".hapax_ledger'::pg_catalog.regclass::pg_catalog.oid::bigint)
    );
begin
    delete from "SCHEMA".hapax_guard g
     where g.ctid operator(pg_catalog.=) guard
       and g.xact operator(pg_catalog.=) pg_catalog.pg_current_xact_id()
       and g.operations operator(pg_catalog.=) number;
    if not found then
        raise exception 'this transaction has no open claim of these operations'
            using errcode = '55000', hint = 'Roll back. The claim was rolled back, or the transaction has ended since.';
    end if;
    insert into "SCHEMA".hapax_ledger (operation, namespace, verdict, rule, fingerprint, answer)
    select u.operation, namespace, u.verdict, u.rule, u.fingerprint, u.answer
      from unnest(operations, verdicts, rules, fingerprints, answers)
           u (operation, verdict, rule, fingerprint, answer);
end
$$;

-- Claims an operation in a transaction of a service, and returns what it found: `locked`, because another transaction
-- holds the lock of the operation; `busy`, the same under SERIALIZABLE, where a search for a row that is not there yet
-- can undo one of the two transactions (40001); `claimed`; `open`, if this transaction has claimed it before and not
-- finished it; `ended`, if it has a row or is dead. Under a stricter level than READ COMMITTED, the snapshot may be
-- older than the row of a twin, which only an insertion finds (40001); and a search would lock a page of the key for
-- everybody. So a row is inserted first, and undone.
create function hapax_claim_own(namespace text, operation uuid, rule smallint, fingerprint bytea) returns text
language plpgsql volatile parallel unsafe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
    is_new boolean := false;
begin
    if not pg_try_advisory_xact_lock(
        uuid_hash_extended(operation, hashtextextended(namespace, '"SCHEMA".hapax_ledger'::regclass::oid::bigint))
    ) then
        return case when current_setting('transaction_isolation') = 'serializable' then 'busy' else 'locked' end;
    end if;
    if current_setting('transaction_isolation') <> 'read committed' then
        begin
            insert into "SCHEMA".hapax_ledger (operation, namespace, verdict, rule, fingerprint, answer)
            values (operation, namespace, 0, rule, fingerprint, '')
                on conflict on constraint hapax_ledger_pkey do nothing;
            is_new := found;
            raise exception using errcode = 'HX001';
        exception when sqlstate 'HX001' then
            null;
        end;
    else
        perform from "SCHEMA".hapax_ledger l where l.operation = operation and l.namespace = namespace;
        is_new := not found;
    end if;
    if not is_new then
        return 'ended';
    end if;
    perform from "SCHEMA".hapax_attempt a
      where a.operation = operation and a.namespace = namespace and a.dead_at is not null;
    if found then
        return 'ended';
    end if;
    insert into "SCHEMA".hapax_open (operation, namespace, rule, fingerprint)
    values (operation, namespace, rule, fingerprint)
        on conflict on constraint hapax_open_pkey do nothing;
    return case when found then 'claimed' else 'open' end;
end
$$;

-- Claims an operation in the transaction of the caller. `fingerprint` is null, or what `Hapax-Fingerprint` has: the
-- rule in decimal, a colon and 24 hexadecimal digits, after a comma the same under an older rule. Waits for no other
-- transaction.
create or replace function hapax_once(
    namespace text, operation uuid, fingerprint text, out outcome text, out answer bytea
)
language plpgsql volatile parallel unsafe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
    form      constant text := '^([01]?\d?\d|2[0-4]\d|25[0-5]):[0-9a-fA-F]{24}$';
    given     text[] := string_to_array(replace(coalesce(fingerprint, '0:' || repeat('0', 24)), ' ', ''), ',');
    newest    text := given[1];
    older     text := given[2];
    rule      smallint;
    print     bytea;
    entry     record;
    claim     text;
begin
    if namespace is null or octet_length(namespace) not between 1 and 255 or starts_with(namespace, 'hapax/') then
        raise exception 'the namespace of a ledger has 1 to 255 bytes, and does not begin with `hapax/`'
            using errcode = '22023', hint = 'Name the service.';
    end if;
    if operation is null then
        raise exception 'the operation is null'
            using errcode = '22023', hint = 'Give the UUID in Hapax-Operation, or one that is derived from the key.';
    end if;
    if newest is null or newest !~ form or older !~ form or cardinality(given) > 2 then
        raise exception 'a fingerprint is RULE:HEX with a rule up to 255 and 24 hexadecimal digits, or two of them'
            using errcode = '22023', hint = 'Give the value of Hapax-Fingerprint, or null to compare no payload.';
    end if;
    rule := split_part(newest, ':', 1);
    print := decode(split_part(newest, ':', 2), 'hex');
    claim := "SCHEMA".hapax_claim_own(namespace, operation, rule, print);
    if claim = 'claimed' then
        outcome := 'fresh';
        return;
    elsif claim = 'busy' then
        outcome := 'busy';
        return;
    end if;
    -- Also without the lock: another transaction that replays the operation holds it, too.
    select l.verdict as verdict, l.rule as recorded_rule, l.fingerprint as recorded_print, l.answer as recorded,
           coalesce(l.xact = pg_current_xact_id_if_assigned(), false) as is_finished_here
      into entry
      from "SCHEMA".hapax_ledger l
     where l.operation = operation and l.namespace = namespace;
    if claim = 'open' or found and entry.is_finished_here then
        raise exception 'this transaction has claimed the operation % before', operation
            using errcode = '55000', hint = 'Call hapax_once once for each operation of a transaction.';
    elsif found and (coalesce(entry.verdict, 0) not in (1, 2) or entry.recorded is null
                     or entry.recorded_rule not between 0 and 255 or octet_length(entry.recorded_print) <> 12) then
        raise exception 'the row of the operation % is damaged', operation
            using errcode = 'XX001', hint = 'No function of this release wrote it. Find out if the effect is there.';
    elsif found and (rule = 0 or entry.recorded_rule = 0
                     or (entry.recorded_rule = rule and entry.recorded_print = print)
                     or (entry.recorded_rule = split_part(older, ':', 1)::smallint
                         and entry.recorded_print = decode(split_part(older, ':', 2), 'hex'))) then
        outcome := 'replay';
        answer := entry.recorded;
    elsif found then
        outcome := 'mismatch';
    elsif claim = 'locked' then
        outcome := 'busy';
    else
        -- What the claim found may have been removed since.
        perform from "SCHEMA".hapax_attempt a
          where a.operation = operation and a.namespace = namespace and a.dead_at is not null;
        outcome := case when found then 'dead' else 'busy' end;
    end if;
end
$$;

-- Finishes an operation that this transaction has claimed, with the response for later copies. Call it after all writes
-- and before the events: it also notices a claim that was rolled back to a savepoint, and a transaction that was ended
-- and begun again meanwhile, in which an event would be committed by itself.
create or replace function hapax_done(namespace text, operation uuid, response bytea) returns void
language plpgsql volatile parallel unsafe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
    claim record;
begin
    if namespace is null or operation is null then
        raise exception 'the namespace or the operation is null'
            using errcode = '22023', hint = 'Give what hapax_once was given.';
    end if;
    if response is null then
        raise exception 'the response is null'
            using errcode = '22023', hint = 'Give the bytes that a later copy gets; they may be empty.';
    end if;
    if current_setting('transaction_isolation') = 'serializable' then
        -- A search would lock a page of the key, and each claim is a conflict with that. An insertion finds the claim
        -- without a lock. Without a claim it leaves a row with no fingerprint, which is undone.
        insert into "SCHEMA".hapax_open as o (operation, namespace, rule, fingerprint)
        values (operation, namespace, 0, '')
            on conflict on constraint hapax_open_pkey
            do update set open = o.open where o.xact = pg_current_xact_id()
        returning o.ctid as place, o.rule, o.fingerprint into claim;
        delete from "SCHEMA".hapax_open o where o.ctid = claim.place and claim.fingerprint <> '';
    else
        delete from "SCHEMA".hapax_open o
         where o.operation = operation and o.namespace = namespace and o.xact = pg_current_xact_id()
        returning o.rule, o.fingerprint into claim;
    end if;
    if not found then
        raise exception 'this transaction has no open claim of the operation %', operation
            using errcode = '55000',
                  hint = 'Roll back. The claim was rolled back or finished, or the transaction has ended since.';
    end if;
    insert into "SCHEMA".hapax_ledger (operation, namespace, verdict, rule, fingerprint, answer)
    values (operation, namespace, 1, claim.rule, claim.fingerprint, response)
        on conflict on constraint hapax_ledger_pkey do nothing;
    if not found then
        raise exception 'another transaction has ended the operation %', operation
            using errcode = '40001', hint = 'Roll back, and run the whole transaction again.';
    end if;
end
$$;

revoke all on function
    hapax_claim_one(text, uuid),
    hapax_finish_one(tid, text, uuid, smallint, smallint, bytea, bytea),
    hapax_claim(text, uuid[]),
    hapax_finish(tid, text, uuid[], smallint[], smallint[], bytea[], bytea[]),
    hapax_claim_own(text, uuid, smallint, bytea),
    hapax_once(text, uuid, text),
    hapax_done(text, uuid, bytea)
from public;
