delete from hapax_guard;

commit;

begin;
