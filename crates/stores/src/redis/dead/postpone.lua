-- KEYS: as put.lua. ARGV: number of the call, time in ms, '1' if a worker goes on with the letters, ids.
local time = redis.call('TIME')
local free_at = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2]
for place = 4, #ARGV do
    local entry = redis.call('HGET', KEYS[2], ARGV[place])
    local found = entry and redis.call('XRANGE', KEYS[1], entry, entry)[1]
    local is_held = ARGV[3] ~= '1' or redis.call('HEXISTS', KEYS[5], ARGV[place]) == 1
    if found and is_held and redis.call('HEXISTS', KEYS[3], ARGV[place]) == 1 then
        redis.call('ZADD', KEYS[1] .. ':marked:' .. found[2][4], free_at, ARGV[place])
        if ARGV[3] == '1' then
            redis.call('HSET', KEYS[5], ARGV[place], string.format('%.0f', free_at * 1000))
        else
            redis.call('HDEL', KEYS[5], ARGV[place])
        end
    end
end
return {ARGV[1]}
