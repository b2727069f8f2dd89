-- Whether the record $1 is as it was written under the token $2, and completed if $3, or as a later write left it. The
-- mark has the token of a record that was removed.
select exists (
           select from hapax_record
            where rk = $1
              and ((token < 0, token) > ($2 < 0, $2) or (token = $2 and (state = 2 or not $3)))
       ) or exists (
           select from hapax_store where id = 1 and (mark < 0, mark) >= ($2 < 0, $2)
       ) as has_kept
