-- Checks whether an owner still has the lock, and sets the end of its lease, raises
-- the lock's fence or makes another the owner. It never takes a lock, not even one
-- that nobody has had since.
-- KEYS  1 record, 2 shares (only for a lock that is shared)
-- ARGV  1 mode, 2 owner, 3 its fence, 4 lease from now (ms; 0: leave its end),
--       5 fence to raise the lock's to (0: leave it), 6 owner to hand it to ("": none);
--       with 4 and 5 both 0 it changes nothing
-- Gives {"ok", end of lease}, or why the owner does not have the lock: {"expired"},
--       {"taken"}, {"lost"}, {"released"}
-- Run again after it has handed the lock over, it gives the same answer.
local found = redis.call('HMGET', record, 'o', 'x', 'l', 'f', 'b', 'lr', 'fu')
local length, fence = tonumber(found[3] or 0), tonumber(found[4] or 0)
if not found[4] then
  return {'lost'}
elseif tonumber(found[5] or 0) > tonumber(ARGV[3]) then
  return {found[7] and 'taken' or 'lost'}
end
local me, heir = ARGV[2], ARGV[6]
local shared, shares = ARGV[1] == 'r' or ARGV[1] == 'p', KEYS[2]
local ends
local function look(who)
  if shared then
    ends = tonumber(redis.call('ZSCORE', shares, who) or nil)
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
  return {'ok', ends}
end

local lease = tonumber(ARGV[4])
if lease == 0 then
  lease = ends - now
end
ends = now + lease
fence = math.max(fence, tonumber(ARGV[5]))
length = shared and math.max(length, lease) or lease
local ttl = lifetime(length, fence)
redis.call('PEXPIRE', record, ttl) -- first, since it needs no memory
if shared then
  if heir ~= '' then
    redis.call('ZADD', shares, ends, heir) -- first: a set that loses its last member loses its TTL too
    redis.call('ZREM', shares, me)
    me = heir
  end
  redis.call('PEXPIRE', shares, ttl)
  redis.call('ZADD', shares, ends, me)
  redis.call('HSET', record, 'l', length, 'f', fence)
else
  redis.call('HSET', record, 'o', heir ~= '' and heir or me, 'x', ends, 'l', length, 'f', fence)
end
return {'ok', ends}
