-- How a lock passes from one holder to the next, for the scripts that include this.
-- They have set permits, channel (prefix of the channels) and mine (the entry of the
-- caller, "" if it has none).

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

-- Makes a process that lets a grant lapse count as dead until it bids again. It may have a
-- thousand entries, and each would cost the others CLAIM.
local function suspect(holder)
  if string.sub(holder, 1, 2) == 'g:' then
    redis.call('ZREM', alive, process(string.sub(holder, 3)))
  end
end

-- Drops the leases and grants that have ended by now.
local function expire(mode)
  if owner ~= '' and ends <= now then
    suspect(owner)
    if string.sub(owner, 1, 2) == 'g:' then -- readers would leave it there, and each script suspect its process once more
      redis.call('HSET', record, 'o', '')
    end
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
  if length > 0 then -- the clock may have stepped back, as in state.lua
    for _, holder in ipairs(redis.call('ZRANGEBYSCORE', shares, string.format('(%.0f', now + length), '+inf')) do
      redis.call('ZADD', shares, now + length, holder)
    end
  end
end

-- Tells whether the lock can be taken in this mode, whatever is in the queue.
local function fits(mode)
  if owner ~= '' then
    return false
  elseif alone(mode) or mode == 'r' then
    return true
  elseif mode == 'w' then
    return redis.call('ZCARD', shares) == 0
  end
  return redis.call('ZCARD', shares) < permits
end

-- Gives the first entry of a living process, and drops the entries of dead ones before it. A
-- process that was only slow comes back with its ticket.
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

-- Grants the lock to entries from the head of the queue, as long as it fits. Gives the
-- entry at which it stopped: the caller's own, which takes the lock itself, or one that the
-- lock does not fit. While an owner has the lock it looks at no entry.
local function advance()
  while owner == '' do
    local entry = head()
    if not entry or entry == mine then
      return entry
    end
    local mode = string.sub(entry, 1, 1)
    if not fits(mode) then
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
    redis.pcall('PUBLISH', channel .. process(entry), record .. ' ' .. entry)
  end
end

-- Gives every key its time to live: the queue and alive only if the caller waits, since
-- waiting callers do this every few seconds.
local function retain(mode, waits)
  local ttl = lifetime(math.max(length, done - now, 0), fence)
  redis.call('PEXPIRE', record, ttl)
  if not alone(mode) then
    redis.call('PEXPIRE', shares, ttl)
  end
  if waits then
    redis.call('PEXPIRE', queue, ttl)
    redis.call('PEXPIRE', alive, ttl)
  end
end

