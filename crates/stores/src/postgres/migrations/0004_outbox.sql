-- Keys of the outbox whose rows are not published until an operator decides. `key` is the ordering key, or the id of an
-- event without one. `row_id` is the row that was refused. A key that is being resumed has `resumed_at`.
create table hapax_parked (
    parked_at  timestamptz not null default clock_timestamp(),
    resumed_at timestamptz,
    row_id     bigint not null,
    bucket     smallint not null,
    event_id   uuid not null,
    key        bytea primary key,
    topic      text not null,
    reason     text not null
);

-- One row. `openings` grows in each transaction that opens rows again, so that relays look behind their cursors.
-- `republications` grows when an operator begins to publish rows again: a mark counts for what was published since.
create table hapax_relay (
    id             smallint primary key check (id = 1),
    openings       bigint not null default 0,
    republications bigint not null default 0
);

insert into hapax_relay (id) values (1);

-- Returns how many republications have begun. None begins until the transaction has ended. The lock comes first, in a
-- statement of its own: a statement that began before the lock was free may not see the last one.
create function hapax_hold_republications() returns bigint
language sql volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
    select pg_advisory_xact_lock_shared(
        hashtextextended('republications', '"SCHEMA".hapax_relay'::regclass::oid::bigint)
    );
    select republications from "SCHEMA".hapax_relay;
$$;

-- Begins a republication, and returns how many have begun. It waits for marks that run. From its commit on the mark of
-- an event that was published before does not count.
create function hapax_begin_republication() returns bigint
language sql volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
    select pg_advisory_xact_lock(hashtextextended('republications', '"SCHEMA".hapax_relay'::regclass::oid::bigint));
    update "SCHEMA".hapax_relay set republications = republications + 1::bigint returning republications;
$$;

-- The states of a row: 0 open, 1 published, 2 set aside because its key is parked, 3 dropped by an operator.
-- `published_at` is also the time at which a row was dropped. The constraint is not valid for older rows, so that no
-- row is read while the table is locked: the ledger writes objects only.
alter table hapax_outbox
    add constraint hapax_outbox_headers check (jsonb_typeof(headers) = 'object') not valid;

-- Finds the rows of a key that is resumed. No other row is in it.
create index hapax_outbox_aside on hapax_outbox (coalesce(okey, uuid_send(event_id)), id) where state = 2;

-- Lets the other transactions that emit in order for this key wait until this one has ended, so that the order of the
-- ids of a key is the order of the commits.
create function hapax_order(okey bytea) returns void
language sql volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
    select pg_advisory_xact_lock(hashtextextended(encode($1, 'hex'), '"SCHEMA".hapax_outbox'::regclass::oid::bigint));
$$;

-- The id of the n-th event of an operation, in the ledger or service of this namespace.
create function hapax_event_id(namespace text, operation uuid, n integer) returns uuid
language sql stable parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select encode(set_byte(set_byte(h, 6, (get_byte(h, 6) & 15) | 128), 8, (get_byte(h, 8) & 63) | 128), 'hex')::uuid
      from convert_to($1, 'UTF8') name,
           substr(sha256('hapax/event/v2'::bytea || int4send(octet_length(name)) || name || uuid_send($2)
                         || int4send($3)), 1, 16) h;
$$;

-- Writes an event in the transaction of the caller, and returns its id. With an operation, `n` counts its events from
-- 0, and the id is derived. Without one the id is new.
create function hapax_emit(
    namespace        text,
    operation        uuid,
    n                integer,
    topic            text,
    payload          bytea,
    okey             bytea   default null,
    type             text    default null,
    source           text    default null,
    content_type     text    default null,
    headers          jsonb   default '{}',
    in_commit_order  boolean default false
) returns uuid
language plpgsql volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    event uuid;
    size  bigint;
begin
    if namespace is null or namespace = '' then
        raise exception 'the namespace of an event is empty'
            using errcode = '22023', hint = 'Name the service or the ledger that emits the event.';
    end if;
    if (operation is null) <> (n is null) or n < 0 then
        raise exception 'an event of an operation has a number from 0 on, and another event has none'
            using errcode = '22023', hint = 'Count the events of the operation from 0, or give null for both.';
    end if;
    if topic is null or octet_length(topic) not between 1 and 255 then
        raise exception 'the topic of an event has 1 to 255 bytes'
            using errcode = '22023', hint = 'Choose a shorter topic.';
    end if;
    if octet_length(okey) not between 1 and 255 then
        raise exception 'the ordering key of an event has 1 to 255 bytes'
            using errcode = '22023', hint = 'Give null for events in any order, or a hash of a longer key.';
    end if;
    if in_commit_order and okey is null then
        raise exception 'an event without an ordering key has no order'
            using errcode = '22023', hint = 'Give an ordering key, or leave in_commit_order out.';
    end if;
    if headers is null or jsonb_typeof(headers) <> 'object'
        or exists (select from jsonb_each(headers) h where jsonb_typeof(h.value) <> 'string') then
        raise exception 'the headers of an event are an object of texts'
            using errcode = '22023', hint = 'Write them as in {"traceparent": "00-…"}.';
    end if;
    select octet_length(payload) + coalesce(sum(octet_length(h.key) + octet_length(h.value)), 0)
      into size
      from jsonb_each_text(headers) h;
    if payload is null or size > 1000000 then
        raise exception 'an event has a payload and at most 1,000,000 bytes, headers included; this one has %', size
            using errcode = '22023', hint = 'Store a large body elsewhere, and emit where it is.';
    end if;
    event := case when operation is null then gen_random_uuid()
                  else "SCHEMA".hapax_event_id(namespace, operation, n) end;
    if in_commit_order then
        perform "SCHEMA".hapax_order(okey);
    end if;
    insert into "SCHEMA".hapax_outbox
        (event_id, namespace, operation, n, okey, topic, type, source, content_type, headers, payload)
    values (event, namespace, operation, n, okey, topic, type, source, content_type, headers, payload);
    return event;
end
$$;
