-- Claims an operation in the transaction of the caller. `fingerprint` is null, or what `Hapax-Fingerprint` has: the
-- rule in decimal, a colon and 24 hexadecimal digits, after a comma the same under an older rule. Waits for no other
-- transaction. The lock is the one of the ledger in Rust. Every volatile function sees in each statement what is
-- committed by then, unless the transaction has a snapshot: so the row of a twin that was in the way is found. Plans
-- are kept for as long as the connection: they use the key, however small the tables were when they were made.
create function hapax_once(namespace text, operation uuid, fingerprint text, out outcome text, out answer bytea)
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
    is_locked boolean;
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
    is_locked := pg_try_advisory_xact_lock(
        uuid_hash_extended(operation, hashtextextended(namespace, '"SCHEMA".hapax_ledger'::regclass::oid::bigint))
    );
    -- A row that was in the way may be removed before it is read.
    for tries in 1..3 loop
        insert into "SCHEMA".hapax_ledger (operation, namespace, rule, fingerprint)
        select operation, namespace, rule, print
         where is_locked
           and not exists (
                   select from "SCHEMA".hapax_attempt a
                    where a.operation = operation and a.namespace = namespace and a.dead_at is not null
               )
            on conflict on constraint hapax_ledger_pkey do nothing;
        if found then
            outcome := 'fresh';
            return;
        end if;
        -- Also without the lock: another transaction that replays the operation holds it, too.
        select l.rule as recorded_rule, l.fingerprint as recorded_print, l.answer as recorded,
               coalesce(l.xact = pg_current_xact_id_if_assigned(), false) as is_claimed_here
          into entry
          from "SCHEMA".hapax_ledger l
         where l.operation = operation and l.namespace = namespace;
        if found and entry.is_claimed_here then
            raise exception 'this transaction has claimed the operation % before', operation
                using errcode = '55000', hint = 'Call hapax_once once for each operation of a transaction.';
        elsif found and (rule = 0 or entry.recorded_rule = 0
                         or (entry.recorded_rule = rule and entry.recorded_print = print)
                         or (entry.recorded_rule = split_part(older, ':', 1)::smallint
                             and entry.recorded_print = decode(split_part(older, ':', 2), 'hex'))) then
            outcome := 'replay';
            answer := entry.recorded;
            return;
        elsif found then
            outcome := 'mismatch';
            return;
        end if;
        exit when not is_locked;
        perform from "SCHEMA".hapax_attempt a
          where a.operation = operation and a.namespace = namespace and a.dead_at is not null;
        if found then
            outcome := 'dead';
            return;
        end if;
    end loop;
    outcome := 'busy';
end
$$;

-- Finishes an operation that this transaction has claimed, with the response for later copies. Call it after all writes
-- and before the events: it also notices a claim that was rolled back to a savepoint, and a transaction that was ended
-- and begun again meanwhile, in which an event would be committed by itself.
create function hapax_done(namespace text, operation uuid, response bytea) returns void
language plpgsql volatile parallel unsafe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
begin
    if response is null then
        raise exception 'the response is null'
            using errcode = '22023', hint = 'Give the bytes that a later copy gets; they may be empty.';
    end if;
    update "SCHEMA".hapax_ledger l
       set open = null, verdict = 1, answer = response
     where l.operation = operation and l.namespace = namespace and l.open = 1 and l.xact = pg_current_xact_id();
    if not found then
        raise exception 'this transaction has no open claim of the operation %', operation
            using errcode = '55000',
                  hint = 'Roll back. The claim was rolled back or finished, or the transaction has ended since.';
    end if;
end
$$;
