-- Whether there is a row with the event @event.
SELECT event_id FROM hapax_outbox@{FORCE_INDEX=hapax_outbox_event} WHERE event_id = @event
