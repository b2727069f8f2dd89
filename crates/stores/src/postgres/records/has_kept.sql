-- Whether the record $1 is as it was written under the token $2, and completed if $3, or as a later write left it. If
-- its row is gone or shows an older token, the mark must have kept the token. State 6 is completed, too, with a pointer
-- to the answer.
select case when r.token = $2 then r.state in (2, 6) or not $3
            when (r.token < 0, r.token) > ($2 < 0, $2) then true
            else (s.mark < 0, s.mark) >= ($2 < 0, $2)
       end as has_kept
  from hapax_store s left join hapax_record r on r.rk = $1
 where s.id = 1
