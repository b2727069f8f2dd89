-- KEYS: as put.lua. ARGV: number of the call, id, mark, the reason of the word, the reason that replaces it.
-- Replies {number, new mark}, or {number} if the letter has another mark or no word.
if redis.call('HGET', KEYS[3], ARGV[2]) ~= ARGV[3] then return {ARGV[1]} end
if redis.call('HGET', KEYS[4], ARGV[2]) ~= ARGV[4] then return {ARGV[1]} end
local time = redis.call('TIME')
local micros = time[1] .. string.format('%06d', time[2])
if tonumber(ARGV[3]) >= tonumber(micros) then micros = string.format('%.0f', tonumber(ARGV[3]) + 1) end
redis.call('HSET', KEYS[4], ARGV[2], ARGV[5])
redis.call('HSET', KEYS[3], ARGV[2], micros)
return {ARGV[1], micros}
