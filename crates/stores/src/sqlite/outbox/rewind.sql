update hapax_relay set openings = openings + 1
