-- One row for each request that arrived, copies included. `result` is what the service answered.
create table if not exists request (
    id           integer primary key autoincrement,
    operation    text    not null,
    payment      integer not null,
    amount_cents integer not null,
    nonce        text    not null,
    result       text    not null
) strict;

create index if not exists request_payment on request (payment);

-- One row for each time that a card was charged. `operation` is the key of the message, and `cause` is why the worker
-- got it.
create table if not exists charge (
    id           integer primary key autoincrement,
    operation    text    not null,
    payment      integer not null,
    amount_cents integer not null,
    nonce        text    not null,
    account      text    not null,
    cause        text    not null
) strict;
