-- Publishes a value, if the lease it was built under still stands.
-- KEYS  1 value, 2 lease
-- ARGV  1 token, 2 bytes ("" to leave no value), 3 life of the value in ms,
--       4 channel, 5 wake-up message
-- Gives 1 if the value is published, 0 if it must not be: something happened to
--       the key since the lease was granted; 2 if a key of another type stands there.
-- Asked again, it finds its own bytes and gives 1 again. It reads no more than those
-- and one: somebody else may have put there what takes long to read.
if redis.pcall('HGET', KEYS[2], 't') ~= ARGV[1] then
  if redis.pcall('GETRANGE', KEYS[1], 0, #ARGV[2]) == ARGV[2] then
    return 1
  end
  return 0
end
local awaited, published = redis.call('HEXISTS', KEYS[2], 'w'), 1
if not ours(redis.pcall('GETRANGE', KEYS[1], 0, 0)) then
  published = 2
elseif ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
redis.call('DEL', KEYS[2])
if awaited == 1 then
  redis.call('PUBLISH', ARGV[4], ARGV[5])
end
return published
