#!lua flags=allow-oom
-- Writes the record again as it is, so that a WAIT behind it covers the write that brought it there, by whomever.
-- KEYS[1] the record; ARGV[1] the observed record, ARGV[2] the number of the call.
local number = ARGV[#ARGV]
local there = redis.call('GET', KEYS[1])
if there ~= ARGV[1] then
    return {'CHANGED', number, ''}
end
redis.call('SET', KEYS[1], there, 'KEEPTTL')
return {'YES', number, ''}
