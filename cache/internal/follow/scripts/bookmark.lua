-- Reads, and writes, how far a fleet has followed a feed of changes.
-- KEYS  1 the record, a hash: f fence of the last follower, n number of its last call,
--       p position, o order of the position, c what the position stands for
-- ARGV  1 fence of the caller's lease, 2 number of the call under that lease, 3 life of the
--       record in ms; then names and values of the fields to write, if any
-- Gives {1, p, o, c}, or {0} if a later follower has called, or this one later.
local function number(text) return tonumber(text or 0) or 0 end
local held = redis.call('HMGET', KEYS[1], 'f', 'n')
local fence, calls = number(held[1]), number(held[2])
if fence > number(ARGV[1]) or fence == number(ARGV[1]) and calls > number(ARGV[2]) then
  return {0}
end
redis.call('HSET', KEYS[1], 'f', ARGV[1], 'n', ARGV[2], unpack(ARGV, 4))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
local bookmark = redis.call('HMGET', KEYS[1], 'p', 'o', 'c')
return {1, bookmark[1], bookmark[2], bookmark[3]}
