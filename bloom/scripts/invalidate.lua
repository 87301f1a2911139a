-- Gives the snapshot up: rows may exist whose ids were not added. Every process abstains until a Rebuild
-- that begins later has succeeded.
-- KEYS  1 record, 2 lease of a Rebuild
-- ARGV  1 header, 2 a token that nobody has, 3 life of the lease in ms, 4 channel, 5 message, 6 when
--       it was invalidated, if Redis has lost that, and 0 for a new invalidation
-- Gives when the filter was invalidated, in microseconds, or 0 if the record is gone or another one is
-- there. What Redis has lost is repeated by the first process that calls, and the others do nothing.
-- A later invalidation has a later time, whatever the clock does.
-- A Rebuild that runs may have scanned past such a row: switch.lua refuses its result. This script takes
-- the lease from the Rebuild, so that it ends soon.
if redis.pcall('HGET', KEYS[1], 'header') ~= ARGV[1] then
  return 0
end
local last, lost = tonumber(redis.call('HGET', KEYS[1], 'invalid') or 0) or 0, tonumber(ARGV[6])
if lost > 0 and last >= lost then
  return last
end
local time = redis.call('TIME')
last = math.max(last + 1, lost, time[1] * 1000000 + time[2])
redis.call('HSET', KEYS[1], 'shape', '')
redis.call('HSET', KEYS[1], 'invalid', string.format('%.0f', last))
if redis.call('EXISTS', KEYS[2]) == 1 then
  redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
end
redis.pcall('PUBLISH', ARGV[4], ARGV[5])
return last
