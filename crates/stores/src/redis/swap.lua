#!lua flags=allow-oom
-- Replaces the observed record by the next one, unless it was written or renewed since. Both change its expiry.
-- KEYS[1] the record; ARGV[1] the observed record, '' for none, ARGV[2] its expiry in unix ms, -1 for none,
-- ARGV[3] the next record, ARGV[4] its lifetime in ms, ARGV[5] the number of the call.
local number = ARGV[#ARGV]
local there = redis.call('GET', KEYS[1])
local unchanged = ARGV[1] == ''
if there then
    unchanged = ARGV[1] == there and redis.call('PEXPIRETIME', KEYS[1]) == tonumber(ARGV[2])
end
if unchanged then
    redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
    return {'YES', number, ''}
end
if not there then
    return {'ABSENT', number, ''}
end
return {'CHANGED', number, there}
