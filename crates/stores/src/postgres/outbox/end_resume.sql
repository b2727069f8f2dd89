-- Ends the parking of a key. Relays read everything again.
with resumed as (
    delete from hapax_parked where key = $1
)
update hapax_relay set openings = openings + 1::bigint
