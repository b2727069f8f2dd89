select pg_total_relation_size('hapax_record')::float8,
       (select count(*) from hapax_record)::float8,
       n_tup_hot_upd::float8 / greatest(n_tup_upd, 1),
       n_dead_tup::float8
  from pg_stat_user_tables
 where relname = 'hapax_record'
