#!lua flags=allow-oom
-- Replaces the observed record by the next one, unless it was written or renewed since. Both change its expiry.
-- KEYS[1] the record; ARGV[1] the observed record, '' for none, ARGV[2] its expiry in unix ms, -1 for none,
-- ARGV[3] the next record, ARGV[4] its lifetime in ms.
local there = redis.call('GET', KEYS[1])
local unchanged = ARGV[1] == ''
if there then
    unchanged = ARGV[1] == there and redis.call('PEXPIRETIME', KEYS[1]) == tonumber(ARGV[2])
end
if unchanged then
    redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
    return {'YES', KEYS[1], ''}
end
if not there then
    return {'ABSENT', KEYS[1], ''}
end
return {'CHANGED', KEYS[1], string.sub(there, 1, 58)}
