-- KEYS: as put.lua. ARGV: number of the call, time in ms, ids.
local time = redis.call('TIME')
local free_at = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2]
for place = 3, #ARGV do
    local entry = redis.call('HGET', KEYS[2], ARGV[place])
    local found = entry and redis.call('XRANGE', KEYS[1], entry, entry)[1]
    if found and redis.call('HEXISTS', KEYS[3], ARGV[place]) == 1 then
        redis.call('ZADD', KEYS[1] .. ':marked:' .. found[2][4], free_at, ARGV[place])
    end
end
return {ARGV[1]}
