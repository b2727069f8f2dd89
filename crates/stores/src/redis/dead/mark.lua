-- KEYS: as put.lua. ARGV: number of the call, id, then maybe a reason and the one that replaces it.
-- Replies {number, whether there is such a letter}.
-- The set of a source has its marked letters, by the time (ms) from which on they can be taken.
local entry = redis.call('HGET', KEYS[2], ARGV[2])
local found = entry and redis.call('XRANGE', KEYS[1], entry, entry)[1]
if not found then return {ARGV[1], '0'} end
if ARGV[3] then
    local reason = redis.call('HGET', KEYS[4], ARGV[2]) or cjson.decode(found[2][6]).reason
    if reason == ARGV[3] then redis.call('HSET', KEYS[4], ARGV[2], ARGV[4]) end
end
local time = redis.call('TIME')
local micros = time[1] .. string.format('%06d', time[2])
if redis.call('HSETNX', KEYS[3], ARGV[2], micros) == 1 then
    redis.call('ZADD', KEYS[1] .. ':marked:' .. found[2][4], string.sub(micros, 1, -4), ARGV[2])
end
return {ARGV[1], '1'}
