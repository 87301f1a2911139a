-- Asks for the right to rebuild a value.
-- KEYS  1 value, 2 lease
-- ARGV  1 token, 2 life of the lease in ms, 3 the first 64 bytes of the value
--       that the caller has seen and rejected ("" if it saw none), 4 the length in
--       bytes up to which it wants the value
-- Gives {"value", bytes}  somebody has published one meanwhile
--       {"long", bytes}   something longer stands there; its first 64 bytes
--       {"held", ms}      a writer holds the key: load, but do not publish. The first of
--                         its holds ends after that long, if not before
--       {"wait", ms}      another caller has the lease for that long, unless renewed
--       {"granted"}       the lease is the caller's
--       {"foreign"}       a key of another type stands there
-- Asked again with the same token, it grants again: a client may repeat what it
-- got no answer to.
local found = ours(redis.pcall('GETRANGE', KEYS[1], 0, 63))
if type(found) == 'string' and found ~= '' and found ~= ARGV[3] then
  local value = redis.call('GETRANGE', KEYS[1], 0, ARGV[4])
  if #value > tonumber(ARGV[4]) then
    return {'long', found}
  end
  return {'value', value}
end

local lease = ours(redis.pcall('HGETALL', KEYS[2]))
if not found or not lease then
  return {'foreign'}
elseif lease.err then
  return lease
end
local left = redis.call('PTTL', KEYS[2])
if left == -1 then -- without an end: not what we have left there
  redis.call('DEL', KEYS[2])
  lease = {}
end
local time, token, first = redis.call('TIME'), nil, nil
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for i = 1, #lease, 2 do
  local field, ends = lease[i], tonumber(lease[i + 1]) or 0
  if field == 't' then
    token = lease[i + 1]
  elseif field:sub(1, 2) == 'h:' and ends > now then
    first = math.min(first or ends, ends)
  end
end
if first then
  return {'held', first - now}
end
if token and token ~= ARGV[1] then
  redis.call('HSET', KEYS[2], 'w', '1')
  return {'wait', left}
end
redis.call('HSET', KEYS[2], 't', ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return {'granted'}
