-- The ids and sizes of open rows, without those that have no key and whose namespace and topic are in ?4.
select id, length(payload) + length(cast(headers as blob))
  from hapax_outbox
 where state = 0 and bucket = ?1 and id > ?2
   and not (okey is null
            and (namespace, topic) in (select json_extract(value, '$[0]'), json_extract(value, '$[1]')
                                         from json_each(?4)))
 order by id
 limit ?3
