select rewinds from hapax_relay where id = 1
