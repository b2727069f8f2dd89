-- KEYS: as put.lua. ARGV: number of the call, id, the seen entry, the seen mark or ''. Replies as mark.lua.
local entry = redis.call('HGET', KEYS[2], ARGV[2])
local found = entry and redis.call('XRANGE', KEYS[1], entry, entry)[1]
if not found then return {ARGV[1], 'missing'} end
local mark = redis.call('HGET', KEYS[3], ARGV[2]) or ''
if entry ~= ARGV[3] or mark ~= ARGV[4] then return {ARGV[1], 'stale'} end
local time = redis.call('TIME')
local taken_until = redis.call('HGET', KEYS[5], ARGV[2])
if taken_until and tonumber(taken_until) > time[1] * 1000000 + time[2] then
    return {ARGV[1], 'taken', taken_until}
end
redis.call('ZREM', KEYS[1] .. ':marked:' .. found[2][4], ARGV[2])
redis.call('XDEL', KEYS[1], entry)
for hash = 2, 5 do redis.call('HDEL', KEYS[hash], ARGV[2]) end
return {ARGV[1], 'yes'}
