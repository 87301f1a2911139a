-- Looks whether an owner has the lock still, and sets the end of its lease. It
-- never takes a lock anew, not even one that nobody has had since.
-- KEYS  1 record, 4 shares
-- ARGV  1 mode, 2 owner, 3 its fence, 4 lease from now (ms; 0: only look),
--       5 fence to raise the lock's to (0: none), 6 owner to hand it to ("": none)
-- Gives {"ok", end of lease, fence}, or {"expired"}, {"taken"}, {"lost"},
--       {"released"}: why it is not the owner's
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function text(n) return string.format('%.0f', n) end
local micros, RETAIN, DAY = time[1] * 1000000 + time[2], 600000, 86400000 -- as in state.lua

local found = redis.call('HMGET', KEYS[1], 'o', 'x', 'l', 'f', 'b', 'lr')
local length, fence = tonumber(found[3] or 0), tonumber(found[4] or 0)
if not found[4] or tonumber(found[5] or 0) > tonumber(ARGV[3]) then
  return {'lost'}
end
local me, heir = ARGV[2], ARGV[6]
local shared = ARGV[1] == 'r' or ARGV[1] == 'p'
local ends
local function look(who)
  if shared then
    ends = tonumber(redis.call('ZSCORE', KEYS[4], who) or nil)
  else
    ends = found[1] == who and tonumber(found[2])
  end
  return ends
end
if not look(me) and (heir == '' or not look(heir)) then
  if found[6] == me then
    return {'released'}
  elseif shared then
    return {'expired'}
  end
  return {'taken'}
end
if ends - now > length then -- the server's clock has stepped back
  ends = now + length
end
if ends <= now then
  return {'expired'}
end
if ARGV[4] == '0' and ARGV[5] == '0' then
  return {'ok', ends, fence}
end

local lease = tonumber(ARGV[4])
if lease == 0 then
  lease = ends - now
end
ends = now + lease
fence = math.max(fence, tonumber(ARGV[5]))
length = shared and math.max(length, lease) or lease
local ttl = text(length + RETAIN + math.min(math.max(fence - micros, 0) / 1000, DAY))
redis.call('PEXPIRE', KEYS[1], ttl) -- first, since it needs no memory
if shared then
  if heir ~= '' then
    redis.call('ZREM', KEYS[4], me)
    me = heir
  end
  redis.call('PEXPIRE', KEYS[4], ttl)
  redis.call('ZADD', KEYS[4], text(ends), me)
  redis.call('HSET', KEYS[1], 'l', text(length), 'f', text(fence))
else
  redis.call('HSET', KEYS[1], 'o', heir ~= '' and heir or me, 'x', text(ends), 'l', text(length), 'f', text(fence))
end
return {'ok', ends, fence}
