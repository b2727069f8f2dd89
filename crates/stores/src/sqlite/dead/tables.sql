-- One row for each message that nobody can process. A repeated letter replaces its row, which gets a new number.
-- `at`, `marked_at`, `free_at`, `taken_until` and `sent_at` are microseconds since the unix epoch. A letter with
-- `marked_at` is to be processed again: a worker of its source may take it from `free_at` on. A worker has it until
-- `taken_until`. `position` is the 64 bits of an unsigned number. `payload` is the last column because SQLite must read
-- past it to reach the columns behind.
create table if not exists hapax_dead (
    number      integer primary key autoincrement,
    id          blob    not null unique check (length(id) = 16),
    reason      text    not null,
    attempts    integer not null,
    namespace   text    not null,
    source      text    not null,
    operation   blob    check (length(operation) = 16),
    rule        integer not null,
    fingerprint blob    not null check (length(fingerprint) = 12),
    at          integer not null,
    marked_at   integer,
    free_at     integer,
    taken_until integer,
    origin      text,
    partition   integer,
    position    integer,
    position_id blob,
    sent_at     integer,
    okey        blob,
    headers     text    not null,
    payload     blob    not null
) strict;

create index if not exists hapax_dead_marked on hapax_dead (source, marked_at) where marked_at is not null;

create index if not exists hapax_dead_keys on hapax_dead (source, okey) where okey is not null;
