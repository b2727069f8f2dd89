-- One row: the largest token of the records that were removed.
create table hapax_store (
    id   smallint primary key check (id = 1),
    mark bigint not null
);

insert into hapax_store (id, mark) values (1, 0);

-- In a completed record `owner`, `attempt`, `lease_ms` and `lifetime_s` are null; in every other record `answer` and
-- `expiry_s` are. `record_check` covers all fields of the record, so a row that was altered or moved to another key is
-- an error. It does not cover `since` and `expires_at`, which a renewal changes. A token is the 64 bits of an unsigned
-- number.
--
-- A renewal and a completion change no column of an index, and a page keeps room for the new row: PostgreSQL then
-- writes no index.
create table hapax_record (
    token        bigint not null,
    since        timestamptz not null,
    expires_at   timestamptz not null,
    lease_ms     bigint,
    lifetime_s   bigint,
    expiry_s     bigint,
    attempt      integer,
    state        smallint not null,
    rule         smallint not null,
    takeover     boolean not null,
    -- For the index below: an index on `state` would be written by every completion.
    is_unknown   boolean generated always as (nullif(state = 4, false)) stored,
    rk           bytea primary key check (octet_length(rk) = 16),
    fingerprint  bytea not null,
    record_check bytea not null,
    owner        bytea,
    answer       bytea
) with (fillfactor = 70);

-- Finds the largest token, in the order of unsigned numbers.
create index hapax_record_token on hapax_record ((token < 0), token);

-- Has only the records with an unknown outcome, so that they can be counted, and costs the others nothing.
create index hapax_record_unknown on hapax_record (is_unknown) where is_unknown;
