#!lua flags=allow-oom
-- Renews the lease of a grant. The lease is derived from the key's time to live, so setting that to the record's
-- lifetime renews it. KEYS[1] the record; ARGV[1] token, ARGV[2] owner, encoded as in the header, ARGV[3] the number
-- of the call.
-- The header of a record in progress is 58 bytes: version and state 1-2, token 5-12, owner 25-40, lease 41-44,
-- lifetime 45-48 (counted from 1, as Lua does).
local number = ARGV[#ARGV]
local header = redis.call('GETRANGE', KEYS[1], 0, 57)
if header == '' and redis.call('EXISTS', KEYS[1]) == 0 then
    return {'GONE', number, ''}
end
local in_progress = string.sub(header, 1, 2) == '\1\1'
local holds = string.sub(header, 5, 12) == ARGV[1] and string.sub(header, 25, 40) == ARGV[2]
-- An abandoned record has a lease of zero.
local abandoned = string.sub(header, 41, 44) == '\0\0\0\0'
if not (in_progress and holds) or abandoned then
    -- With its answer, which the check in the header covers.
    return {'LOST', number, redis.call('GET', KEYS[1])}
end
local a, b, c, d = string.byte(header, 45, 48)
local lifetime = ((a * 256 + b) * 256 + c) * 256 + d
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.max(1, lifetime) * 1000))
return {'YES', number, header}
