-- Refuses a new row with a name that no sink has room for beside the largest event. A trigger, because a constraint
-- would also refuse to mark or to resume an older row, and has no hint.
create function hapax_refuse_event() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'the namespace, the type, the source and the content type of an event have at most 255 bytes each'
        using errcode = '22023', hint = 'Choose shorter ones, or write the long one into the payload.';
end
$$;

create trigger hapax_outbox_attributes before insert on hapax_outbox
for each row
when (octet_length(new.namespace) > 255 or octet_length(new.type) > 255 or octet_length(new.source) > 255
      or octet_length(new.content_type) > 255)
execute function hapax_refuse_event();
