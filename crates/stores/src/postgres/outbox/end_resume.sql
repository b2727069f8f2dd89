-- Ends the parking of a key. Relays read everything again, and marks count as before: see republish.sql.
with resumed as (
    delete from hapax_parked where key = $1
)
update hapax_relay set rewinds = rewinds + 4294967296
