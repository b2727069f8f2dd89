-- Takes the locks of the ordering keys $1, in the order of the array: transactions that take the locks of several keys
-- in one order do not end each other. It is a call for each row, which no plan moves before the rows are in order.
select hapax_order(k.okey)
  from (select u.okey from pg_catalog.unnest($1) with ordinality u (okey, place) order by u.place) k
