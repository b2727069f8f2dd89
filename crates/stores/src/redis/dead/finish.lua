-- KEYS: as put.lua. ARGV: number of the call, then an id and its mark, and so on.
for place = 2, #ARGV, 2 do
    local id, mark = ARGV[place], ARGV[place + 1]
    -- A letter that was written again has no mark, or a later one.
    if redis.call('HGET', KEYS[3], id) == mark then
        local entry = redis.call('HGET', KEYS[2], id)
        local found = entry and redis.call('XRANGE', KEYS[1], entry, entry)[1]
        if found then
            redis.call('ZREM', KEYS[1] .. ':marked:' .. found[2][4], id)
            redis.call('XDEL', KEYS[1], entry)
        end
        for hash = 2, 5 do redis.call('HDEL', KEYS[hash], id) end
    end
end
return {ARGV[1]}
