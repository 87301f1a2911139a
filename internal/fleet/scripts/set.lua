-- Ends a Set: publishes its value, unless something happened to the key since it
-- was claimed. So a Set that reaches the server late, after its writer has been
-- told that it failed and somebody has invalidated the key, does no harm.
-- KEYS  1 value, 2 lease
-- ARGV  1 token, 2 bytes, 3 life in ms, 4 channel, 5 invalidation message
-- Gives 1 if the value is published, 0 if the server has no memory for it, 2 if it
--       has been overtaken, or a key of another type stands there.
-- Asked again, it finds its own bytes and gives 1 again. It reads no more than those
-- and one: somebody else may have put there what takes long to read.
if redis.pcall('HGET', KEYS[2], 't') ~= ARGV[1] then
  redis.call('PUBLISH', ARGV[4], ARGV[5])
  if redis.pcall('GETRANGE', KEYS[1], 0, #ARGV[2]) == ARGV[2] then
    return 1
  end
  return 2
end
local published = 1
if not ours(redis.pcall('GETRANGE', KEYS[1], 0, 0)) then
  published = 2
elseif redis.pcall('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]).err then
  published = 0
end
redis.call('HDEL', KEYS[2], 't', 'w')
local time, holds, last = redis.call('TIME'), redis.call('HGETALL', KEYS[2]), 0
for i = 1, #holds, 2 do
  if holds[i]:sub(1, 2) == 'h:' then
    last = math.max(last, tonumber(holds[i + 1]) or 0)
  end
end
redis.call('PEXPIRE', KEYS[2], string.format('%.0f', last - time[1] * 1000 - math.floor(time[2] / 1000)))
redis.call('PUBLISH', ARGV[4], ARGV[5])
return published
