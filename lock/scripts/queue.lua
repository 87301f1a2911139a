-- How a lock passes from one to the next. It stands in the scripts where they say
-- so, after the short ways that do without it, and uses what they have set:
-- places (permits), channel (prefix of the channels) and mine (the caller's entry).

local function alone(mode) return mode == 'm' or mode == 'o' end -- there are no shares
local function exclusive(mode) return alone(mode) or mode == 'w' end
local function process(entry) return string.match(entry, '^.:([^:]*):') end

-- Stops the script if a key to be written is of another type.
local function check(mode)
  redis.call('ZCARD', queue)
  redis.call('ZCARD', alive)
  if not alone(mode) then
    redis.call('ZCARD', shares)
  end
end

-- A process that lets a grant lapse counts as dead until it is heard again: it
-- may have a thousand entries, and none shall cost the others this time again.
local function suspect(holder)
  if string.sub(holder, 1, 2) == 'g:' then
    redis.call('ZREM', alive, process(string.sub(holder, 3)))
  end
end

-- Drops what has ended by now.
local function expire(mode)
  if owner ~= '' and ends <= now then
    suspect(owner)
    owner = ''
  elseif stepped then
    redis.call('HSET', record, 'x', ends)
  end
  if alone(mode) then
    return
  end
  for _, holder in ipairs(redis.call('ZRANGEBYSCORE', shares, '-inf', now)) do
    suspect(holder)
    redis.call('ZREM', shares, holder)
  end
  if length > 0 then -- the step back again
    for _, holder in ipairs(redis.call('ZRANGEBYSCORE', shares, string.format('(%.0f', now + length), '+inf')) do
      redis.call('ZADD', shares, now + length, holder)
    end
  end
end

-- Tells whether the lock can be taken in this mode, leaving the queue aside.
local function room(mode)
  if owner ~= '' then
    return false
  elseif alone(mode) or mode == 'r' then
    return true
  elseif mode == 'w' then
    return redis.call('ZCARD', shares) == 0
  end
  return redis.call('ZCARD', shares) < places
end

-- Gives the first entry of a living process, and drops those of dead ones: one
-- that was only slow comes back, with its turn.
local function head()
  while queued do
    local entry = redis.call('ZRANGE', queue, 0, 0)[1]
    if not entry then
      redis.call('HDEL', record, 'q')
      queued = false
      return nil
    elseif entry == mine then
      return entry
    end
    local seen = redis.call('ZSCORE', alive, process(entry) or '')
    if seen and tonumber(seen) > now then
      return entry
    end
    redis.call('ZREM', queue, entry)
  end
end

-- Grants the lock to as many from the head of the queue as there is room for.
-- Gives the entry it stopped at: the caller's own, or one for which there is none; of
-- a lock that one holds alone it looks at no entry.
local function advance()
  while owner == '' do
    local entry = head()
    if not entry or entry == mine then
      return entry
    end
    local mode = string.sub(entry, 1, 1)
    if not room(mode) then
      return entry
    end
    redis.call('ZREM', queue, entry)
    if exclusive(mode) then
      owner, ends, length = 'g:' .. entry, now + CLAIM, CLAIM
      redis.call('HSET', record, 'o', owner, 'x', ends, 'l', CLAIM, 'm', '')
    else
      redis.call('ZADD', shares, now + CLAIM, 'g:' .. entry)
      length = math.max(length, CLAIM)
      redis.call('HSET', record, 'l', length)
    end
    redis.call('PUBLISH', channel .. process(entry), record .. ' ' .. entry)
  end
end

-- Gives every key its time to live. Those who wait give theirs to the queue and to
-- alive, and do so again every few seconds.
local function retain(mode, waits)
  local ttl = life(math.max(length, done - now, 0))
  redis.call('PEXPIRE', record, ttl)
  if not alone(mode) then
    redis.call('PEXPIRE', shares, ttl)
  end
  if waits then
    redis.call('PEXPIRE', queue, ttl)
    redis.call('PEXPIRE', alive, ttl)
  end
end

