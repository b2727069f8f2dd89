delete from hapax_ledger where open = 1;

commit;

begin;
