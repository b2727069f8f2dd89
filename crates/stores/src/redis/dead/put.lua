-- KEYS: the stream of letters, the hash id -> entry, the hash id -> mark, the hash id -> changed reason,
-- the hash id -> until when a worker has the letter, in microseconds.
-- ARGV: number of the call, id, source, letter, ordering key, id of the position, payload.
local entry = redis.call('XADD', KEYS[1], '*', 'id', ARGV[2], 'source', ARGV[3], 'letter', ARGV[4], 'okey', ARGV[5],
    'position_id', ARGV[6], 'payload', ARGV[7])
local earlier = redis.call('HGET', KEYS[2], ARGV[2])
redis.call('HSET', KEYS[2], ARGV[2], entry)
if earlier then
    redis.call('XDEL', KEYS[1], earlier)
    for hash = 3, 5 do redis.call('HDEL', KEYS[hash], ARGV[2]) end
end
return {ARGV[1]}
