create table account (name text primary key, balance bigint not null check (balance >= 0));
create table transfer (
    number bigint generated always as identity,
    operation text not null,
    payer text not null,
    payee text not null,
    amount bigint not null
);
insert into account values ('alice', 1000), ('bob', 1000);
