select name from sqlite_master where type in ('table', 'trigger')
