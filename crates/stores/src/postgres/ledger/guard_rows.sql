-- The tables of claims that have a row which anybody can see, and so a claim that was committed without its end.
select 'has a claim that was committed without its end' as fault, 'hapax_guard' as name
 where exists (select from hapax_guard)
 union all
select 'has a claim that was committed without its end', 'hapax_open'
 where exists (select from hapax_open)
