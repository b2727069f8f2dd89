-- A row as the usual pattern keeps it.
create table bare_record (
    rk          bytea primary key,
    fingerprint bytea not null,
    expires_at  timestamptz not null,
    answer      bytea
) with (fillfactor = 70);
