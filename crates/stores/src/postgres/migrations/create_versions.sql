create table if not exists hapax_migration (
    version    integer primary key,
    applied_at timestamptz not null default clock_timestamp()
);
