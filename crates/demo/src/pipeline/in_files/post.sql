-- One row for each receipt that was sent to a customer. `cause` is why the consumer got the event.
create table if not exists receipt (
    id           integer primary key autoincrement,
    charge       integer not null,
    payment      integer not null,
    amount_cents integer not null,
    nonce        text    not null,
    account      text    not null,
    cause        text    not null
) strict;
