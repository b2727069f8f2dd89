-- Can hold no row. A row of the ledger that refers to it cannot be committed.
create table hapax_never (
    id smallint primary key check (false)
);

-- One row for each operation that has ended. A transaction inserts it open and finishes it: `open` refers to a table
-- without rows, and the reference is checked at COMMIT. Verdict 1: applied, 2: rejected. `xact` also shows a
-- transaction that was ended and begun again before the row was finished. The key begins with the operation, so that a
-- namespace that was just added has no effect on plans. Half of each page is left free, so that a row is finished on
-- its own page, without a new entry in the index.
create table hapax_ledger (
    xact        xid8 not null default pg_current_xact_id(),
    created_at  timestamptz not null default clock_timestamp(),
    operation   uuid not null,
    open        smallint default 1,
    verdict     smallint check (verdict in (1, 2)),
    rule        smallint not null,
    namespace   text collate "C" not null check (namespace <> ''),
    fingerprint bytea not null check (octet_length(fingerprint) = 12),
    answer      bytea,
    primary key (operation, namespace),
    constraint hapax_ledger_is_finished foreign key (open) references hapax_never deferrable initially deferred,
    check ((open is null) = (verdict is not null)),
    check ((verdict is null) = (answer is null))
) with (fillfactor = 50);

-- Failed attempts of operations that have no row in the ledger. `dead_at` closes the operation.
create table hapax_attempt (
    operation  uuid not null,
    first_at   timestamptz not null default clock_timestamp(),
    dead_at    timestamptz,
    attempts   integer not null default 1,
    namespace  text collate "C" not null check (namespace <> ''),
    last_error text not null,
    primary key (operation, namespace)
);

create sequence hapax_outbox_id;

-- Events that leave after the commit. State 0: not published. A row without an ordering key may be published in any
-- order. The id is drawn after the transaction has its own id: otherwise a transaction could hold a small row id while
-- the oldest running transaction is younger than it seems.
create table hapax_outbox (
    id           bigint primary key
                 default (case when pg_current_xact_id() is not null then pg_catalog.nextval('hapax_outbox_id') end),
    created_at   timestamptz not null default clock_timestamp(),
    published_at timestamptz,
    event_id     uuid not null unique,
    operation    uuid,
    n            integer,
    state        smallint not null default 0,
    bucket       smallint not null
                 generated always as ((get_byte(sha256(coalesce(okey, uuid_send(event_id))), 0) & 63)::smallint) stored,
    namespace    text collate "C" not null,
    topic        text not null check (octet_length(topic) between 1 and 255),
    type         text,
    source       text,
    content_type text,
    okey         bytea check (octet_length(okey) between 1 and 255),
    headers      jsonb not null default '{}',
    payload      bytea not null check (octet_length(payload) <= 1000000)
);

alter sequence hapax_outbox_id owned by hapax_outbox.id;

create index hapax_outbox_open on hapax_outbox (bucket, id) where state = 0;
