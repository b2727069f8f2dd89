update hapax_store set mark = ?1 where id = 1
