-- Can hold no row. A row of the ledger that refers to it cannot be committed.
create table if not exists hapax_never (
    id integer primary key check (id <> id)
) strict;

-- One row for each operation that has ended. A transaction inserts it open and finishes it: `open` refers to a table
-- without rows, and the reference is checked at COMMIT. Verdict 1: applied, 2: rejected. Times are milliseconds since
-- the unix epoch. `answer` is the last column because SQLite must read past it to reach the columns behind.
create table if not exists hapax_ledger (
    id          integer primary key,
    operation   blob    not null check (length(operation) = 16),
    namespace   text    not null check (namespace <> ''),
    open        integer default 1 references hapax_never deferrable initially deferred,
    verdict     integer check (verdict in (1, 2)),
    rule        integer not null,
    fingerprint blob    not null check (length(fingerprint) = 12),
    created_at  integer not null,
    answer      blob,
    check ((open is null) = (verdict is not null)),
    check ((verdict is null) = (answer is null))
) strict;

create unique index if not exists hapax_ledger_operation on hapax_ledger (operation, namespace);

-- Failed attempts of operations that have no row in the ledger. `dead_at` closes the operation.
create table if not exists hapax_attempt (
    operation  blob    not null,
    namespace  text    not null,
    attempts   integer not null,
    first_at   integer not null,
    dead_at    integer,
    last_error text    not null,
    primary key (operation, namespace)
) strict, without rowid;

-- Events that leave after the commit. State 0: not published. A row without an ordering key may be published in any
-- order.
create table if not exists hapax_outbox (
    id           integer primary key autoincrement,
    event_id     blob    not null unique check (length(event_id) = 16),
    namespace    text    not null,
    operation    blob,
    n            integer,
    okey         blob    check (length(okey) between 1 and 255),
    bucket       integer not null check (bucket between 0 and 63),
    topic        text    not null check (length(topic) between 1 and 255),
    type         text,
    source       text,
    content_type text,
    headers      text    not null default '{}',
    state        integer not null default 0,
    created_at   integer not null,
    published_at integer,
    payload      blob    not null check (length(payload) <= 1000000)
) strict;

create index if not exists hapax_outbox_open on hapax_outbox (bucket, id) where state = 0;
