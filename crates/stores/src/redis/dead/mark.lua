-- KEYS: as put.lua, and the set of the source. ARGV: number of the call, id, the seen entry, the seen mark or '', the
-- reason of a word or '', the reasons that the word replaces. Replies {number, change}, or {number, 'taken', until
-- when (us)}.
-- The set of a source has its marked letters, by the time (ms) from which on they can be taken.
local entry = redis.call('HGET', KEYS[2], ARGV[2])
local found = entry and redis.call('XRANGE', KEYS[1], entry, entry)[1]
if not found then return {ARGV[1], 'missing'} end
if entry ~= ARGV[3] or KEYS[6] ~= KEYS[1] .. ':marked:' .. found[2][4] then return {ARGV[1], 'stale'} end
local mark = redis.call('HGET', KEYS[3], ARGV[2]) or ''
local next_reason
if ARGV[5] ~= '' then
    local reason = redis.call('HGET', KEYS[4], ARGV[2]) or cjson.decode(found[2][6]).reason
    for place = 6, #ARGV do
        if reason == ARGV[place] and reason ~= ARGV[5] then next_reason = ARGV[5] end
    end
end
if mark ~= '' and not next_reason then return {ARGV[1], 'yes'} end
if mark ~= ARGV[4] then return {ARGV[1], 'stale'} end
local time = redis.call('TIME')
local micros = time[1] .. string.format('%06d', time[2])
local taken_until = redis.call('HGET', KEYS[5], ARGV[2])
if taken_until and tonumber(taken_until) > tonumber(micros) then return {ARGV[1], 'taken', taken_until} end
-- Each change has a mark of its own.
local next_mark = micros
if mark ~= '' and tonumber(mark) >= tonumber(micros) then next_mark = string.format('%.0f', tonumber(mark) + 1) end
if next_reason then redis.call('HSET', KEYS[4], ARGV[2], next_reason) end
redis.call('HSET', KEYS[3], ARGV[2], next_mark)
redis.call('ZADD', KEYS[6], string.sub(micros, 1, -4), ARGV[2])
return {ARGV[1], 'yes'}
