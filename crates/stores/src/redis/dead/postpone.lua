-- KEYS: as put.lua. ARGV: number of the call, time in ms, '1' if a worker goes on with the letters, ids.
local time = redis.call('TIME')
local free_at = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2]
local sets = {}
for place = 4, #ARGV do
    local id = ARGV[place]
    local entry = redis.call('HGET', KEYS[2], id)
    local found = entry and redis.call('XRANGE', KEYS[1], entry, entry)[1]
    local is_held = ARGV[3] ~= '1' or redis.call('HEXISTS', KEYS[5], id) == 1
    if found and is_held and redis.call('HEXISTS', KEYS[3], id) == 1 then
        sets[id] = KEYS[1] .. ':marked:' .. found[2][4]
        -- A marked letter is in its set, unless the slot of the keys moves and the set is still at the old node.
        if string.find(KEYS[1], '{', 1, true) and not redis.call('ZSCORE', sets[id], id) then
            return redis.error_reply('TRYAGAIN the set of the source is at another node')
        end
    end
end
for id, set in pairs(sets) do
    redis.call('ZADD', set, free_at, id)
    if ARGV[3] == '1' then
        redis.call('HSET', KEYS[5], id, string.format('%.0f', free_at * 1000))
    else
        redis.call('HDEL', KEYS[5], id)
    end
end
return {ARGV[1]}
