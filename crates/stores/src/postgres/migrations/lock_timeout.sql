-- A migration that waits for a lock keeps all calls waiting that come after it.
set local lock_timeout = '15s'
