-- A clock for each role, which tests step. It takes the place of the server's own clock, so that statements find it
-- whatever their search path is, and also where they name the schema of the function.
create schema test_clock;
create table test_clock.skew (role name primary key, micros bigint not null);
grant usage on schema test_clock to public;
grant select on test_clock.skew to public;
alter function pg_catalog.clock_timestamp() rename to server_clock_timestamp;
create function pg_catalog.clock_timestamp() returns timestamptz language sql volatile as $$
    select pg_catalog.server_clock_timestamp()
           + coalesce((select micros from test_clock.skew where role = current_user), 0)::double precision
             * interval '1 microsecond'
$$;
