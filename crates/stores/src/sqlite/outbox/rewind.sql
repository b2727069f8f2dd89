update hapax_relay set rewinds = rewinds + ?1
