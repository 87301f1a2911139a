-- Takes a lock, or stands in its queue, or claims what has been granted: the one
-- script of everybody who wants the lock, also as a heartbeat while waiting.
-- ARGV  1 mode, 2 places (permits of a semaphore, else 1), 3 channel prefix,
--       4 process, 5 entry in the queue ("": do not wait), 6 the turn it had (0: none),
--       7 "1" if more wait behind it in that process, 8 lease (ms), 9 label,
--       10… owners: one, or several readers
-- Gives {"granted", fence, end of lease, turn}  turn > 0: the entry is in the queue again
--       {"busy", remaining ms, queue's length, turn, ask again in ms}
--       {"done"}  the work has been done (once)
--       {"gone"}  this owner has released already: a late copy of the command
-- Asked again by the same owner, it gives the same answer.
local mode = ARGV[1]
local places, channel, mine = tonumber(ARGV[2]), ARGV[3], ARGV[5]
local lease, me = tonumber(ARGV[8]), ARGV[10]

-- The short way: it is free and nobody waits, or nobody has ever had it. When the
-- clock has stepped back, or the record was evicted and the queue was not, it is
-- the long one.
if mode == 'm' and ARGV[6] == '0' and ARGV[7] == '0' then
  local found = redis.call('HMGET', record, 'o', 'f', 'q', 'lr')
  local fresh = not found[2] and redis.call('EXISTS', record, queue) == 0
  if fresh or (found[1] == '' and not found[3] and found[4] ~= me and (tonumber(found[2]) or micros) < micros) then
    redis.call('HSET', record, 'o', me, 'x', now + lease, 'l', ARGV[8], 'f', micros, 'm', ARGV[9])
    if fresh then
      redis.call('HSET', record, 'b', micros)
    end
    redis.call('PEXPIRE', record, lease + RETAIN)
    return {'granted', micros, now + lease}
  end
end

-- include state.lua
if owner == me and ends > now then
  return {'granted', fence, ends, tonumber(redis.call('ZSCORE', queue, mine) or 0)}
elseif released == me then
  return {'gone'}
elseif mode == 'o' and done > now then
  return {'done'}
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
  fence, born = micros, micros
  redis.call('HSET', record, 'f', fence, 'b', born, 'o', '')
end
expire(mode)

-- Stands at its turn, or at the end of the queue, and counts as alive.
local function enqueue(turn, patience)
  if turn == 0 then
    local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
    turn = math.max(micros, tonumber(last or 0) + 1)
  end
  redis.call('ZADD', queue, turn, mine)
  redis.call('ZADD', alive, now + patience, ARGV[4])
  if not queued or not found[6] then
    redis.call('HSET', record, 'q', '1')
    queued = '1'
  end
  return turn
end

-- A process that asks is alive: what it was granted is its own, and it is not
-- passed over in the queue.
local free
if mine ~= '' and exclusive(mode) and owner == 'g:' .. mine then
  owner, free = '', true
elseif mine ~= '' and not exclusive(mode) and redis.call('ZREM', shares, 'g:' .. mine) == 1 then
  free = true
else
  local turn = tonumber(ARGV[6])
  if mine ~= '' and turn > 0 and not redis.call('ZSCORE', queue, mine) then
    enqueue(turn, 3000) -- it had been passed over, but its turn is where it was
  end
  local first = advance()
  free = (not first or first == mine) and room(mode)
end

if free then
  local stays = ARGV[7] == '1' -- with a new turn
  if mine ~= '' and not stays then
    redis.call('ZREM', queue, mine)
  end
  if mode ~= 'r' then -- readers get the fence of the last writer
    fence = math.max(fence + 1, micros)
  end
  length = exclusive(mode) and lease or math.max(length, lease)
  if exclusive(mode) then
    owner, ends = me, now + lease
    redis.call('HSET', record, 'o', me, 'x', ends, 'l', length, 'f', fence, 'm', ARGV[9])
  else
    redis.call('HSET', record, 'l', length, 'f', fence)
    for i = 10, #ARGV do
      redis.call('ZADD', shares, now + lease, ARGV[i])
    end
  end
  local turn = stays and enqueue(0, 3000) or 0
  mine = ''
  advance() -- there may be room for more: readers behind a reader, permits
  retain(mode, ARGV[5] ~= '')
  return {'granted', fence, now + lease, turn}
end

local remaining = ends - now
if owner == '' then
  remaining = tonumber(redis.call('ZRANGE', shares, 0, 0, 'WITHSCORES')[2] or now) - now
end
local turn, again = 0, 0
if mine ~= '' then
  turn = enqueue(tonumber(redis.call('ZSCORE', queue, mine) or ARGV[6]), 3000)
  local rank = redis.call('ZRANK', queue, mine)
  again = math.min(math.max(1000, math.min(5000, 60 * rank)), math.max(remaining, 0) + 2 + 50 * rank)
  redis.call('ZADD', alive, now + math.max(3000, 2.5 * again), ARGV[4])
end
retain(mode, ARGV[5] ~= '')
return {'busy', math.max(remaining, 0), redis.call('ZCARD', queue), turn, math.ceil(again)}
