-- Two selects: SQLite looks both ends up only one by one.
select (select min(id) from hapax_outbox), (select max(id) from hapax_outbox)
