select pg_total_relation_size('hapax_record')
