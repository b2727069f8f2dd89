update hapax_relay set republications = republications + 1
