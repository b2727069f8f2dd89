#!lua flags=allow-oom
-- Writes the next record over the one that was seen, unless it was written or renewed since: a renewal raises the time to live.
-- KEYS[1] the record; ARGV[1] what was seen, '' for nothing, ARGV[2] its time to live in ms,
-- ARGV[3] the next record, ARGV[4] its lifetime in ms.
local there = redis.call('GET', KEYS[1])
if there and ARGV[1] == there and redis.call('PTTL', KEYS[1]) <= tonumber(ARGV[2]) or not there and ARGV[1] == '' then
    redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
    return {'YES', KEYS[1], ''}
end
if not there then
    return {'ABSENT', KEYS[1], ''}
end
return {'CHANGED', KEYS[1], string.sub(there, 1, 58)}
