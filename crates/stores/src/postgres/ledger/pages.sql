-- The number of pages of the ledger.
select pg_relation_size('hapax_ledger') / current_setting('block_size')::bigint as pages
