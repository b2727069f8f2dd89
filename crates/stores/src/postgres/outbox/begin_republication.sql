-- In a transaction of its own: see upkeep.rs.
select hapax_begin_republication() as republications
