-- KEYS: as put.lua, and the set of the source. ARGV: number of the call, source, count, lease in ms. Replies as
-- find.lua, with many letters.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local marked = KEYS[6]
local reply = {ARGV[1]}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', marked, '-inf', now, 'LIMIT', 0, ARGV[3])) do
    local entry = redis.call('HGET', KEYS[2], id)
    local mark = redis.call('HGET', KEYS[3], id)
    local found = entry and mark and redis.call('XRANGE', KEYS[1], entry, entry)[1]
    if found and found[2][4] == ARGV[2] then
        redis.call('ZADD', marked, now + ARGV[4], id)
        redis.call('HSET', KEYS[5], id, string.format('%.0f', (now + ARGV[4]) * 1000))
        local fields = found[2]
        local reason = redis.call('HGET', KEYS[4], id) or ''
        reply[#reply + 1] = {id, fields[6], fields[8], fields[10], fields[12], mark, reason, entry}
    else
        -- The letter was removed, or written again.
        redis.call('ZREM', marked, id)
    end
end
return reply
