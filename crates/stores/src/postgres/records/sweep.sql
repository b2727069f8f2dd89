-- Removes at most $3 expired records in $2 pages from page $1 on, and keeps the largest of their tokens. There is no
-- index on `expires_at`: every renewal and completion would have to write it.
with expired as materialized (
    select ctid
      from hapax_record
     where ctid >= pg_catalog.format('(%s,0)', $1)::pg_catalog.tid
       and ctid < pg_catalog.format('(%s,0)', $1 + $2)::pg_catalog.tid
       and expires_at <= pg_catalog.clock_timestamp()
     limit $3
       for update skip locked
), removed as (
    delete from hapax_record where ctid = any (array(select ctid from expired)) returning token
), newest as (
    select token from removed order by (token < 0) desc, token desc limit 1
), raised as (
    update hapax_store s
       set mark = n.token
      from newest n
     where s.id = 1 and (n.token < 0, n.token) > (s.mark < 0, s.mark)
)
select (select pg_catalog.count(*) from removed) as removed,
       pg_catalog.pg_relation_size('hapax_record') / pg_catalog.current_setting('block_size')::bigint as pages
