update hapax_outbox
   set state = 0, published_at = null
 where id > ?1 and id <= ?2 and state = 1 and published_at >= ?3 and published_at < ?4
