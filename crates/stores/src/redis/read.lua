#!lua flags=no-writes
-- Returns a record, its expiry in unix ms (-1 for none) and the server's clock, all read in one step. It works on a
-- server that refuses writes (full memory, failing disk, missing replicas), but fails on a replica, whose data may be
-- old. KEYS[1] the record; ARGV[1] the number of the call.
local number = ARGV[#ARGV]
if not string.find(redis.call('INFO', 'replication'), 'role:master', 1, true) then
    return redis.error_reply('READONLY the data of a replica may be old')
end
local there = redis.call('GET', KEYS[1])
local clock = redis.call('TIME')
if not there then
    return {'ABSENT', number, '', '', clock[1], clock[2]}
end
local expires = string.format('%.0f', redis.call('PEXPIRETIME', KEYS[1]))
return {'FOUND', number, there, expires, clock[1], clock[2]}
