select name from sqlite_master where type = 'table'
