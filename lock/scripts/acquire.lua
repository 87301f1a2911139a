-- Takes a lock, or puts the caller's entry in its queue, or claims a lock that the entry has
-- been granted. Waiting callers also run it as a heartbeat.
-- ARGV  1 mode, 2 permits (of a semaphore, else 1), 3 channel prefix,
--       4 process, 5 entry in the queue ("": do not wait), 6 its ticket (0: none yet),
--       7 "1" if more wait behind it in that process, 8 lease (ms), 9 label,
--       10… owners: one, or several readers
-- Gives {"granted", fence, end of lease, ticket}  ticket > 0: the entry is in the queue again
--       {"busy", remaining ms, queue's length, ticket, ask again in ms}
--       {"done"}  the work has been done (once)
--       {"gone"}  this owner has released already: a late copy of the command
-- Run again for the same owner, it gives the same answer, but the fence of a permit is then
-- that of the last permit that anybody got. With the record as its only key it does what
-- needs no other key, and otherwise gives TRYAGAIN.
local mode, permits, channel = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local mine, ticket, more = ARGV[5], tonumber(ARGV[6]), ARGV[7] == '1'
local lease, me = tonumber(ARGV[8]), ARGV[10]

-- The short way, for a mutex that is free and that nobody waits for, or that nobody
-- has ever had. The long way gives the same answer, and is needed when the clock has
-- stepped back, when the record was evicted and the queue was not, and when this
-- owner was the last to release (lr): then the command is a late copy, and nobody would
-- release its lock.
if mode == 'm' and ticket == 0 and not more then
  local found = redis.call('HMGET', record, 'o', 'f', 'q', 'lr')
  local fresh = not found[2] and redis.call('EXISTS', record, queue or record) == 0
  if fresh or (found[1] == '' and not found[3] and found[4] ~= me and (tonumber(found[2]) or micros) + FENCES <= micros) then
    redis.call('HSET', record, 'o', me, 'x', now + lease, 'l', ARGV[8], 'f', micros, 'm', ARGV[9])
    if fresh then
      redis.call('HSET', record, 'b', micros)
    end
    redis.call('PEXPIRE', record, lease + RETAIN)
    return {'granted', micros, now + lease, 0}
  end
end

-- The long way. First the cases that need no queue: a command that is repeated, and work
-- that is done.
-- include state.lua
if owner == me and ends > now then
  return {'granted', fence, ends, queue and tonumber(redis.call('ZSCORE', queue, mine) or 0) or 0}
elseif released == me then
  return {'gone'}
elseif mode == 'o' and done > now then
  return {'done'}
elseif not queue then
  return redis.error_reply('TRYAGAIN a part of the lock is on another node')
end

-- include queue.lua
check(mode)
if not exclusive(mode) then
  local share = redis.call('ZSCORE', shares, me)
  if share and tonumber(share) > now then
    return {'granted', fence, tonumber(share), tonumber(redis.call('ZSCORE', queue, mine) or 0)}
  end
end
if not known then -- new, or evicted
  fence = micros - FENCES
  born = fence
  redis.call('HSET', record, 'f', fence, 'b', born, 'o', '')
end
expire(mode)

-- Puts the caller's entry in the queue, with its ticket or a new one at the end, and
-- notes that its process is alive. Gives the ticket.
local function enqueue(with, patience)
  if with == 0 then
    local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
    with = math.max(micros, tonumber(last or 0) + 1)
  end
  redis.call('ZADD', queue, with, ARGV[5])
  redis.call('ZADD', alive, now + patience, ARGV[4])
  if not queued or not found[6] then
    redis.call('HSET', record, 'q', '1')
    queued = '1'
  end
  return with
end

-- Tells whether the caller may take the lock now: the lock was granted to its entry, which
-- it hereby claims, or the lock fits and the caller is first in the queue. A permit that was
-- granted by a caller with a larger n may not fit.
local function mayTake()
  if mine ~= '' and exclusive(mode) and owner == 'g:' .. mine then
    owner = ''
    return true
  elseif mine ~= '' and not exclusive(mode) and redis.call('ZREM', shares, 'g:' .. mine) == 1 and fits(mode) then
    return true
  end
  if mine ~= '' and ticket > 0 and not redis.call('ZSCORE', queue, mine) then
    enqueue(ticket, 3000) -- it counted as dead and was passed over, but its ticket stands
  end
  local first = advance()
  return (not first or first == mine) and fits(mode)
end

-- Writes the lock to its owner or owners.
local function take()
  if mode ~= 'r' then -- readers get the fence of the last writer
    fence = math.max(fence + FENCES, micros)
  end
  if exclusive(mode) then
    owner, ends, length = me, now + lease, lease
    redis.call('HSET', record, 'o', me, 'x', ends, 'l', length, 'f', fence, 'm', ARGV[9])
    return
  end
  length = math.max(length, lease)
  redis.call('HSET', record, 'l', length, 'f', fence)
  for i = 10, #ARGV do
    redis.call('ZADD', shares, now + lease, ARGV[i])
  end
end

-- Gives the number by which the caller's entry is paced. For the first entry of a process it
-- is the number of processes with entries before it: the entries of a dead process go
-- together, after one CLAIM. For any other entry, or one behind a thousand, it is the rank, so
-- that a process with many entries does not bid for each of them every second. From a hundred
-- on the pace is at its slowest, so the count ends there.
local function before(rank)
  if rank > 1000 then
    return rank
  end
  local seen, processes = {}, 0
  for last = rank - 1, 0, -100 do
    for _, entry in ipairs(redis.call('ZRANGE', queue, math.max(last - 99, 0), last)) do
      local other = process(entry) or ''
      if other == ARGV[4] then
        return rank
      elseif not seen[other] then
        seen[other], processes = true, processes + 1
      end
    end
    if processes >= 100 then
      break
    end
  end
  return processes
end

if mayTake() then
  if mine ~= '' and not more then
    redis.call('ZREM', queue, mine)
  end
  take()
  ticket = more and enqueue(0, 3000) or 0
  mine = ''
  advance() -- it may fit more: readers behind a reader, permits
  retain(mode, ARGV[5] ~= '')
  return {'granted', fence, now + lease, ticket}
end

local remaining = ends - now
if owner == '' then
  remaining = tonumber(redis.call('ZRANGE', shares, 0, 0, 'WITHSCORES')[2] or now) - now
end
local again = 0
if mine == '' then
  ticket = 0
else
  ticket = enqueue(tonumber(redis.call('ZSCORE', queue, mine) or ticket), 3000)
  local ahead = before(redis.call('ZRANK', queue, mine))
  again = math.min(math.max(1000, math.min(5000, 60 * ahead)), math.max(remaining, 0) + 2 + 50 * ahead)
  redis.call('ZADD', alive, now + math.max(3000, 2.5 * again), ARGV[4])
end
retain(mode, ARGV[5] ~= '')
return {'busy', math.max(remaining, 0), redis.call('ZCARD', queue), ticket, math.ceil(again)}
