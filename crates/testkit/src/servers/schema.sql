-- A schema and the role that owns it.
create role NAME login;
create schema NAME authorization NAME;
alter role NAME set search_path = NAME;
set search_path = NAME;
