-- A row as the usual pattern keeps it.
create table bare_record (
    rk          bytea primary key,
    fingerprint bytea not null,
    expires_at  timestamptz not null,
    answer      bytea
) with (fillfactor = 70);

-- What a service writes beside its row of the ledger.
create table effect (operation uuid not null, amount integer not null);
