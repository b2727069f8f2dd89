#!lua flags=allow-oom
-- Removes the observed record, unless it was written or renewed since. Both change its expiry. KEYS[1] the record;
-- ARGV[1] the observed record, ARGV[2] its expiry in unix ms, -1 for none, ARGV[3] the number of the call.
local number = ARGV[#ARGV]
local there = redis.call('GET', KEYS[1])
if there == ARGV[1] and redis.call('PEXPIRETIME', KEYS[1]) == tonumber(ARGV[2]) then
    -- Removes the key at once. DEL would need one more permission.
    redis.call('PEXPIRE', KEYS[1], 0)
    return {'YES', number, ''}
end
return {'CHANGED', number, ''}
