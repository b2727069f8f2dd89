-- The largest row id that is drawn. Read before the stamp, in a statement of its own.
select case when is_called then last_value else 0 end as drawn from hapax_outbox_id
