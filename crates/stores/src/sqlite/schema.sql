-- One row: the version of the schema, and the largest token ever stored.
create table if not exists hapax_store (
    id      integer primary key check (id = 1),
    version integer not null,
    mark    integer not null
) strict;

insert into hapax_store (id, version, mark) values (1, 1, 0) on conflict do nothing;

-- A rowid table with a separate index: record keys are random, so a table in key order would rewrite pages all over the
-- file. Timestamps are microseconds since the unix epoch. In a completed record `owner`, `attempt`, `lease_ms` and
-- `lifetime_s` are null; in every other record `answer` and `expiry_s` are. `record_check` covers all fields of the
-- record, so a row that was altered or moved to another key is an error. It does not cover `since` and `expires_at`,
-- which a renewal changes. `answer` is the last column because SQLite must read past it to reach the columns behind.
create table if not exists hapax_record (
    id           integer primary key,
    rk           blob    not null check (length(rk) = 16),
    state        integer not null,
    takeover     integer not null,
    rule         integer not null,
    fingerprint  blob    not null,
    token        integer not null,
    owner        blob,
    attempt      integer,
    lease_ms     integer,
    lifetime_s   integer,
    expiry_s     integer,
    since        integer not null,
    expires_at   integer not null,
    record_check blob    not null,
    answer       blob
) strict;

create unique index if not exists hapax_record_rk on hapax_record (rk);

-- Has only the records with an unknown outcome, so that they can be counted, and costs the others nothing.
create index if not exists hapax_record_unknown on hapax_record (state) where state = 4;
