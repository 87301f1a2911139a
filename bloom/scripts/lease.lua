-- Takes, or keeps, the turn to rebuild.
-- KEYS  1 record, 2 lease
-- ARGV  1 header, 2 token, 3 life of the lease in ms
-- Gives {"mine", current} or {"held", current}, or {"lost"} if the record is gone
-- or another.
-- A lease that has ended while nobody took it is taken again: what hangs on it, the
-- generation announced by join, does not come back with it.
if redis.pcall('HGET', KEYS[1], 'header') ~= ARGV[1] then
  return {'lost'}
end
local current = redis.call('HGET', KEYS[1], 'current') or ''
local holder = redis.pcall('GET', KEYS[2])
if type(holder) == 'table' then -- not a string, so not ours
  redis.call('DEL', KEYS[2])
  holder = false
end
if holder and holder ~= ARGV[2] then
  return {'held', current}
end
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
return {'mine', current}
