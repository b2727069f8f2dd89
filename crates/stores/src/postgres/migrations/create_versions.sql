-- `needs` is the version that a release must know to use the tables once this one is applied. Null: this very version.
create table if not exists hapax_migration (
    version    integer primary key,
    applied_at timestamptz not null default clock_timestamp(),
    needs      integer
);
alter table hapax_migration add column if not exists needs integer;
