delete from hapax_ledger
where id between ?2 and ?3 and namespace = ?1 and open is null
  and created_at < cast(unixepoch('subsec') * 1000 as integer) - ?4
