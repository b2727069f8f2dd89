-- One row: what distinguishes the queues of this file from those of other files, wherever it lies.
create table if not exists hapax_queue_file (
    id   integer primary key check (id = 1),
    file blob    not null default (randomblob(8))
) strict;

insert into hapax_queue_file (id) values (1) on conflict do nothing;

-- One row for each message that is not acknowledged. Ids are never used again. Times are milliseconds since the unix
-- epoch. A message can be delivered from `visible_at` on. A lease sets it to the end of the lease, and `owner` to its
-- worker. `attempts` counts deliveries. Of the messages with one ordering key, only the first can be delivered: it has
-- `is_first`. A message without an ordering key always has it. `payload` is the last column because SQLite must read
-- past it to reach the columns behind.
create table if not exists hapax_queue (
    id          integer primary key autoincrement,
    queue       text    not null check (length(queue) between 1 and 255),
    okey        blob,
    is_first    integer not null,
    visible_at  integer not null,
    owner       blob,
    attempts    integer not null default 0,
    enqueued_at integer not null,
    headers     text    not null default '[]' check (json_valid(headers)),
    payload     blob    not null
) strict;

-- Finds the next messages, whatever waits behind them.
create index if not exists hapax_queue_ready on hapax_queue (queue, visible_at) where is_first = 1;

-- Finds the next message of an ordering key.
create index if not exists hapax_queue_order on hapax_queue (queue, okey);

-- The next message of an ordering key follows, also if somebody deletes the first by hand.
create trigger if not exists hapax_queue_next after delete on hapax_queue when old.is_first = 1 and old.okey is not null
begin
    update hapax_queue set is_first = 1
    where id = (select min(id) from hapax_queue where queue = old.queue and okey = old.okey);
end;

-- One row for each event that a relay has put in a while ago, also if the message is acknowledged: the event that comes
-- again is left out. One that comes again after another number of republications is not: the queue may have lost it.
create table if not exists hapax_queue_event (
    queue          text    not null,
    event_id       blob    not null check (length(event_id) = 16),
    republications integer not null,
    put_at         integer not null,
    primary key (queue, event_id, republications)
) strict, without rowid;

-- Finds the events that are forgotten next.
create index if not exists hapax_queue_event_oldest on hapax_queue_event (put_at);
