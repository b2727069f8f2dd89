#!lua flags=no-writes
-- Shows a record, its expiry in unix ms (-1 for none) and the clock, as of one instant, also on a server that takes no writes now: one
-- that is full, cannot write to its disk, or misses its replicas. Not on a replica, which may be behind.
-- KEYS[1] the record.
if not string.find(redis.call('INFO', 'replication'), 'role:master', 1, true) then
    return redis.error_reply('READONLY what a replica shows may be old')
end
local there = redis.call('GET', KEYS[1])
local clock = redis.call('TIME')
if not there then
    return {'ABSENT', KEYS[1], '', '', clock[1], clock[2]}
end
local expires = string.format('%.0f', redis.call('PEXPIRETIME', KEYS[1]))
return {'FOUND', KEYS[1], there, expires, clock[1], clock[2]}
