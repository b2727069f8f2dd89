-- Those of the keys @keys whose records have expired by the time @now.
SELECT rk FROM hapax_record WHERE rk IN UNNEST(@keys) AND expires_at <= TIMESTAMP_MICROS(@now)
