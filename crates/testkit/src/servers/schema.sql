-- A schema and the role that owns it. The role's search path puts another clock_timestamp() before that of the system,
-- so that a test can step the clock of this role only.
create role NAME login;
create schema NAME authorization NAME;
create schema NAME_clock;
create table NAME_clock.skew (micros bigint not null);
insert into NAME_clock.skew values (0);
create function NAME_clock.clock_timestamp() returns timestamptz language sql volatile as
    'select pg_catalog.clock_timestamp() + (select micros from NAME_clock.skew) * interval ''1 microsecond''';
grant usage on schema NAME_clock to NAME;
grant select on NAME_clock.skew to NAME;
alter role NAME set search_path = NAME, NAME_clock, pg_catalog;
set search_path = NAME, NAME_clock, pg_catalog;
