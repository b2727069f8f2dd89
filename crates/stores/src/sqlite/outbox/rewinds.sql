select openings, republications from hapax_relay where id = 1
