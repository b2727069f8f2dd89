-- Removes the record $1 if it still has the check $2 and the end of life $3, and keeps its token in the mark.
with removed as (
    delete from hapax_record
     where rk = $1 and record_check = $2 and expires_at = $3 and expires_at > pg_catalog.clock_timestamp()
    returning token
), raised as (
    update hapax_store s
       set mark = r.token
      from removed r
     where s.id = 1 and (r.token < 0, r.token) > (s.mark < 0, s.mark)
)
select exists (select from removed) as is_removed
