-- KEYS: as put.lua. ARGV: number of the call, id.
-- Replies {number, {id, letter, ordering key, id of the position, payload, mark, changed reason, entry}}, or {number}
-- without such a letter.
local entry = redis.call('HGET', KEYS[2], ARGV[2])
if not entry then return {ARGV[1]} end
local found = redis.call('XRANGE', KEYS[1], entry, entry)[1]
if not found then return {ARGV[1]} end
local fields = found[2]
local mark = redis.call('HGET', KEYS[3], ARGV[2]) or ''
local reason = redis.call('HGET', KEYS[4], ARGV[2]) or ''
return {ARGV[1], {ARGV[2], fields[6], fields[8], fields[10], fields[12], mark, reason, entry}}
