select exists (select 1 from sqlite_schema where name = ?1)
