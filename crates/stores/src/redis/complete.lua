#!lua flags=allow-oom
-- Records an answer if the caller's grant still holds the record, or if the record is gone and may be recreated. In
-- every other case it returns the stored record and lets the caller decide. KEYS[1] the record; ARGV[1] token, ARGV[2]
-- rule and fingerprint, ARGV[3] owner, encoded as in the header, ARGV[4] the completed record, ARGV[5] its lifetime in
-- ms, ARGV[6] '1' if a record that is gone may be recreated, ARGV[7] the number of the call.
local number = ARGV[#ARGV]
local there = redis.call('GET', KEYS[1])
if not there then
    if ARGV[6] ~= '1' then
        return {'GONE', number, ''}
    end
    redis.call('SET', KEYS[1], ARGV[4], 'PX', ARGV[5])
    return {'RECREATED', number, ''}
end
-- Version 1, then the state: 1 in progress, 3 released, 4 indeterminate.
local state = string.sub(there, 1, 2)
local same_token = string.sub(there, 5, 12) == ARGV[1]
-- A completion under the same token overwrites these states. The comparison covers the whole header except its lease
-- and lifetime, which a completion replaces.
local heals = state == '\1\1' or state == '\1\3' or state == '\1\4'
local same_payload = string.sub(there, 4, 4) .. string.sub(there, 13, 24) == ARGV[2]
local same_owner = string.sub(there, 25, 40) == ARGV[3]
if heals and same_token and same_payload and same_owner then
    redis.call('SET', KEYS[1], ARGV[4], 'PX', ARGV[5])
    return {'DONE', number, string.sub(there, 1, 58)}
end
return {'FOUND', number, there}
