-- KEYS: as put.lua. ARGV: number of the call, entry to begin behind or '-', count.
-- Replies {number, {entry, id, source, letter, length of the payload, mark, changed reason}, ...}.
local from = ARGV[2]
if from ~= '-' then from = '(' .. from end
local reply = {ARGV[1]}
for _, found in ipairs(redis.call('XRANGE', KEYS[1], from, '+', 'COUNT', ARGV[3])) do
    local fields = found[2]
    local mark = redis.call('HGET', KEYS[3], fields[2])
    local reason = redis.call('HGET', KEYS[4], fields[2])
    reply[#reply + 1] = {found[1], fields[2], fields[4], fields[6], tostring(#fields[12]), mark or '', reason or ''}
end
return reply
