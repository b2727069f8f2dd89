-- Removes the rows of the namespace $1 that are older than $4 seconds from the pages $2 to $3.
delete from hapax_ledger
 where ctid >= $2::text::tid and ctid < $3::text::tid
   and namespace = $1 and open is null and created_at < clock_timestamp() - $4 * interval '1 second'
