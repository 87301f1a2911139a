-- Takes several mutexes at one moment, if all of them are free and nobody waits for any of
-- them, like the short way of acquire.lua. Otherwise it takes none. As it never waits, it
-- cannot deadlock with others, in whatever order they take the same locks.
-- KEYS  for each lock its record and its queue
-- ARGV  1 lease (ms), 2 label, 3… owners: one for each lock
-- Gives {"granted", fence, end of lease, 0}  with one fence for all
--       {"busy", 0, 0, 0, 0}  it took none
--       {"gone"}  an owner has released already, or not all of them have their lock any
--                 more: a late copy of the command
-- Run again for the same owners, it gives the same answer.
local lease = tonumber(ARGV[1])
local fence, ends = micros, now + lease
local repeated, free, fresh = 0, 0, {}
local heldFence, heldEnds = 0, math.huge

-- First it looks at all. A value of another type stops the script here.
local n = #KEYS / 2
for i = 1, n do
  local record, queue, me = KEYS[2 * i - 1], KEYS[2 * i], ARGV[2 + i]
  local found = redis.call('HMGET', record, 'o', 'x', 'f', 'q', 'lr')
  local last, till = tonumber(found[3] or nil), tonumber(found[2] or 0)
  if found[5] == me then
    return {'gone'}
  elseif found[1] == me and last and till and till > now then
    repeated = repeated + 1
    heldFence, heldEnds = math.max(heldFence, last), math.min(heldEnds, till)
  elseif not found[3] and redis.call('EXISTS', record, queue) == 0 then
    free, fresh[i] = free + 1, true
  elseif found[1] == '' and not found[4] and last and 0 * last == 0 then -- no inf, no nan
    free, fence = free + 1, math.max(fence, last + FENCES)
  end
end
if repeated == n then
  return {'granted', heldFence, heldEnds, 0}
elseif repeated > 0 then
  return {'gone'}
elseif free < n then
  return {'busy', 0, 0, 0, 0}
end

-- A server that is out of memory refuses the first of these writes, and none after it.
local ttl = lifetime(lease, fence)
for i = 1, n do
  local record = KEYS[2 * i - 1]
  redis.call('HSET', record, 'o', ARGV[2 + i], 'x', ends, 'l', ARGV[1], 'f', fence, 'm', ARGV[2])
  if fresh[i] then
    redis.call('HSET', record, 'b', fence)
  end
  redis.call('PEXPIRE', record, ttl)
end
return {'granted', fence, ends, 0}
