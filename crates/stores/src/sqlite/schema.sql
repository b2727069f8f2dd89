-- One row: which form the tables have, and the largest token ever stored.
create table if not exists hapax_store (
    id      integer primary key check (id = 1),
    version integer not null,
    mark    integer not null
) strict;

insert into hapax_store (id, version, mark) values (1, 1, 0) on conflict do nothing;

-- A rowid table with an index beside it: record keys are random, and rows that lie in their order would be rewritten all over
-- the file. Instants are microseconds since the unix epoch. `owner`, `attempt`, `lease_ms` and `lifetime_s` are null once
-- completed, `answer` and `expiry_s` until then. `answer` is last: SQLite walks through it to reach what lies behind.
create table if not exists hapax_record (
    id          integer primary key,
    rk          blob    not null check (length(rk) = 16),
    state       integer not null,
    takeover    integer not null,
    rule        integer not null,
    fingerprint blob    not null,
    token       integer not null,
    owner       blob,
    attempt     integer,
    lease_ms    integer,
    lifetime_s  integer,
    expiry_s    integer,
    since       integer not null,
    expires_at  integer not null,
    answer      blob
) strict;

create unique index if not exists hapax_record_rk on hapax_record (rk);
