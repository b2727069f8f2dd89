create sequence hapax_dead_number;

-- One row for each message that nobody can process. A repeated letter replaces its row, which gets a new number. A
-- letter with `marked_at` is to be processed again: a worker of its source may take it from `free_at` on. A worker has
-- it until `taken_until`. `position` is the 64 bits of an unsigned number. `headers` is JSON; a header may contain NUL,
-- which jsonb cannot store.
create table hapax_dead (
    number      bigint not null default pg_catalog.nextval('hapax_dead_number') unique,
    at          timestamptz not null,
    marked_at   timestamptz,
    free_at     timestamptz,
    taken_until timestamptz,
    sent_at     timestamptz,
    position    bigint,
    partition   bigint,
    attempts    bigint not null,
    rule        smallint not null,
    id          uuid primary key,
    operation   uuid,
    reason      text not null,
    namespace   text collate "C" not null,
    source      text collate "C" not null,
    fingerprint bytea not null check (octet_length(fingerprint) = 12),
    origin      text,
    position_id bytea,
    okey        bytea,
    headers     text not null,
    payload     bytea not null
);

alter sequence hapax_dead_number owned by hapax_dead.number;

create index hapax_dead_marked on hapax_dead (source, marked_at) where marked_at is not null;

create index hapax_dead_keys on hapax_dead (source, okey) where okey is not null;
