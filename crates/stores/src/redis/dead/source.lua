-- KEYS: as put.lua. ARGV: number of the call, id. Replies {number, source}, or {number} without such a letter.
local entry = redis.call('HGET', KEYS[2], ARGV[2])
local found = entry and redis.call('XRANGE', KEYS[1], entry, entry)[1]
if not found then return {ARGV[1]} end
return {ARGV[1], found[2][4]}
