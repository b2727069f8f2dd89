-- The ids and sizes of open rows from the id ?2 on, without this id if ?5 is true, and without those that have no key
-- and whose namespace and topic are in ?4.
select id, length(payload) + length(cast(headers as blob))
  from hapax_outbox
 where state = 0 and bucket = ?1 and id >= ?2 and (id > ?2 or not ?5)
   and not (okey is null
            and (namespace, topic) in (select json_extract(value, '$[0]'), json_extract(value, '$[1]')
                                         from json_each(?4)))
 order by id
 limit ?3
