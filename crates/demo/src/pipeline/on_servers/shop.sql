create table request (
    id           bigserial primary key,
    operation    text   not null,
    payment      bigint not null,
    amount_cents bigint not null,
    nonce        text   not null,
    result       text   not null
);

create index request_payment on request (payment);

create table charge (
    id           bigserial primary key,
    operation    text   not null,
    payment      bigint not null,
    amount_cents bigint not null,
    nonce        text   not null,
    account      text   not null,
    cause        text   not null,
    place        text   not null
);

create index charge_operation on charge (operation);

create table receipt (
    id           bigserial primary key,
    charge       bigint not null,
    payment      bigint not null,
    amount_cents bigint not null,
    nonce        text   not null,
    account      text   not null,
    cause        text   not null,
    place        text   not null
);

create index receipt_charge on receipt (charge);
