-- KEYS: as put.lua. ARGV: number of the call, id. Replies {number, whether there was such a letter}.
local entry = redis.call('HGET', KEYS[2], ARGV[2])
local found = entry and redis.call('XRANGE', KEYS[1], entry, entry)[1]
if found then
    redis.call('ZREM', KEYS[1] .. ':marked:' .. found[2][4], ARGV[2])
    redis.call('XDEL', KEYS[1], entry)
end
redis.call('HDEL', KEYS[2], ARGV[2])
redis.call('HDEL', KEYS[3], ARGV[2])
redis.call('HDEL', KEYS[4], ARGV[2])
return {ARGV[1], found and '1' or '0'}
