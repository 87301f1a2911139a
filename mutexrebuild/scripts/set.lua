-- Publishes a value that its writer knows to be the newest. A rebuild begun
-- before loses its lease, so it cannot overwrite the value; holds stay.
-- KEYS  1 value, 2 lease
-- ARGV  1 bytes, 2 life in ms, 3 channel, 4 invalidation message
-- Gives 1, or 0 if the server has no memory for the value: then it is dropped.
local stored = redis.pcall('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
local full = type(stored) == 'table' and stored.err
if full then
  redis.call('DEL', KEYS[1])
end
local dropped = redis.pcall('HDEL', KEYS[2], 't', 'w')
if type(dropped) == 'table' and dropped.err or redis.call('PTTL', KEYS[2]) == -1 then -- not a hash, or without an end: not ours
  redis.call('DEL', KEYS[2])
end
redis.call('PUBLISH', ARGV[3], ARGV[4])
return full and 0 or 1
