#!lua flags=allow-oom
-- Shows a record, its expiry in unix ms (-1 for none) and the clock, as of one instant. A transaction would be refused when memory is full.
-- KEYS[1] the record.
local there = redis.call('GET', KEYS[1])
local clock = redis.call('TIME')
if not there then
    return {'ABSENT', KEYS[1], '', '', clock[1], clock[2]}
end
local expires = string.format('%.0f', redis.call('PEXPIRETIME', KEYS[1]))
return {'FOUND', KEYS[1], there, expires, clock[1], clock[2]}
