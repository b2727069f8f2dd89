-- The outbox of the bare loop: what it reads and writes, and no more. Tables are emptied between measurements.
create table bare_outbox (
    id           bigint generated always as identity primary key,
    created_at   timestamptz not null default clock_timestamp(),
    published_at timestamptz,
    state        smallint not null default 0,
    event_id     uuid not null unique,
    topic        text not null,
    okey         bytea,
    payload      bytea not null
);

create index bare_outbox_open on bare_outbox (id) where state = 0;
