-- Releases a lock, and grants it to the next entries in the queue.
-- ARGV  1 mode, 2 permits, 3 channel prefix, 4 owner, 5 its fence, 6 the end of its
--       lease as it knows it (ms), 7 "1" to refuse the lock also to a bid of the owner
--       that may still arrive, 8 how long its work counts as done (ms, 0: not at all)
-- Gives "ok"       it had the lock, and now has not
--       "expired"  its lease had ended, but nobody has had the lock since
--       "again"    it was the last to release before, and nobody else has had it since
--       "past"     it had released before: by ARGV 6 its lease would go on, yet it does
--                  not have the lock
--       "taken"    its lease had ended and somebody else has had the lock, or the lock
--                  was forced
--       "lost"     the record is not the one it had the lock in, or is an older state of it
-- With the record as its only key it does what needs no other key, and otherwise gives
-- TRYAGAIN.
local mode, me = ARGV[1], ARGV[4]
local permits, channel, mine = tonumber(ARGV[2]), ARGV[3], ''

-- The short way: nobody waits. The record keeps the TTL that it got with its lease,
-- which is at least RETAIN from now. A server that is out of memory refuses HSET as the
-- first write of a script, but not after a write that needs no memory: the long way
-- begins with such a write.
if mode == 'm' then
  local found = redis.call('HMGET', record, 'o', 'x', 'q')
  local rest = (tonumber(found[2]) or 0) - now
  if found[1] == me and not found[3] and rest > 0 and rest <= RETAIN then
    if type(redis.pcall('HSET', record, 'o', '', 'lr', me)) == 'number' then
      return 'ok'
    end
  end
end

-- include state.lua
if not known then
  if ARGV[7] == '1' then
    redis.call('HSET', record, 'o', '', 'f', micros, 'b', micros, 'q', '1', 'lr', me)
    redis.call('PEXPIRE', record, RETAIN)
  end
  return 'lost'
end

-- include queue.lua
if queue then
  check(mode)
end
local expires
if exclusive(mode) then
  expires = owner == me and ends
else
  expires = tonumber(redis.call('ZSCORE', shares, me) or nil)
end
if not expires then
  if ARGV[7] == '1' then
    redis.call('PEXPIRE', record, lifetime(math.max(length, done - now, 0), fence))
    redis.call('HSET', record, 'lr', me)
    return 'past'
  end
  if born > tonumber(ARGV[5]) then
    return forced and 'taken' or 'lost'
  elseif released == me and owner == '' then
    return 'again'
  elseif fence + FENCES <= tonumber(ARGV[5]) then -- a failover: no grant of that fence is known
    return 'lost'
  elseif tonumber(ARGV[6]) > now then
    return 'past'
  end
  return 'taken'
elseif not queue then
  return redis.error_reply('TRYAGAIN a part of the lock is on another node')
end

redis.call('PEXPIRE', record, lifetime(math.max(length, done - now, 0), fence))
if exclusive(mode) then
  redis.call('HSET', record, 'o', '', 'lr', me, 'm', '')
  owner = ''
  if alone(mode) then -- a share may go on for longer than the lease of a writer who releases late
    length = 0
  end
else
  redis.call('ZREM', shares, me)
  redis.call('HSET', record, 'lr', me)
end
local answer = expires > now and 'ok' or 'expired'
if answer == 'ok' and ARGV[8] ~= '0' then -- wake all waiters: the work is done
  done = now + tonumber(ARGV[8])
  redis.call('HSET', record, 'd', done)
  for _, entry in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
    redis.pcall('PUBLISH', channel .. process(entry), record .. ' ' .. entry)
  end
  redis.call('DEL', queue)
end
expire(mode)
advance()
retain(mode)
return answer
