-- The keys of at most @n records that have expired by the time @now.
SELECT rk FROM hapax_record WHERE expires_at <= TIMESTAMP_MICROS(@now) LIMIT @n
