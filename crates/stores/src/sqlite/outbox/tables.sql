-- Keys of the outbox whose rows are not published until an operator decides. `key` is the ordering key, or the id of an
-- event without one. `row_id` is the row that was refused. A key that is being resumed has `resumed_at`. Times are
-- milliseconds since the unix epoch.
create table if not exists hapax_parked (
    key        blob    primary key,
    row_id     integer not null,
    bucket     integer not null,
    event_id   blob    not null,
    topic      text    not null,
    reason     text    not null,
    parked_at  integer not null,
    resumed_at integer
) strict, without rowid;

-- One row. `openings` grows in each transaction that opens rows again, so that relays look behind their cursors.
-- `republications` grows when an operator begins to publish rows again: a mark counts for what was published since.
create table if not exists hapax_relay (
    id             integer primary key check (id = 1),
    openings       integer not null default 0,
    republications integer not null default 0
) strict;

insert or ignore into hapax_relay (id) values (1);

-- The states of a row: 0 open, 1 published, 2 set aside because its key is parked, 3 dropped by an operator.
-- `published_at` is also the time at which a row was dropped. This index finds the rows of a key that is resumed.
create index if not exists hapax_outbox_aside on hapax_outbox (coalesce(okey, event_id), id) where state = 2;

-- A constraint cannot be added to a table that exists.
create trigger if not exists hapax_outbox_headers before insert on hapax_outbox
when not json_valid(new.headers) or json_type(new.headers) <> 'object'
begin
    select raise(abort, 'the headers of an event are an object of texts');
end;

-- Every sink keeps room for names of this length beside the largest event. Counts bytes, as no length of a text does.
create trigger if not exists hapax_outbox_attributes before insert on hapax_outbox
when max(length(cast(new.namespace as blob)), length(cast(coalesce(new.type, '') as blob)),
         length(cast(coalesce(new.source, '') as blob)), length(cast(coalesce(new.content_type, '') as blob))) > 255
begin
    select raise(abort, 'the namespace, type, source and content type of an event have at most 255 bytes each');
end;

-- The constraint of the table counts characters. The trigger has a name of its own, so that an older file gets it.
create trigger if not exists hapax_outbox_topic before insert on hapax_outbox
when length(cast(new.topic as blob)) > 255
begin
    select raise(abort, 'the topic of an event has 1 to 255 bytes');
end;
