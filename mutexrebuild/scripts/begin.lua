-- Asks for the right to rebuild a value.
-- KEYS  1 value, 2 lease
-- ARGV  1 token, 2 life of the lease in ms, 3 the first 64 bytes of the value
--       that the caller has seen and rejected ("" if it saw none), 4 the length in
--       bytes up to which it wants the value
-- Gives {"value", bytes}  somebody has published one meanwhile
--       {"long", bytes}   something longer stands there; its first 64 bytes
--       {"held"}          a writer holds the key: load, but do not publish
--       {"wait", ms}      another caller has the lease for that long, unless renewed
--       {"granted"}       the lease is the caller's
-- Asked again with the same token, it grants again: a client may repeat what it
-- got no answer to.
local found = redis.pcall('GETRANGE', KEYS[1], 0, 63)
if type(found) == 'string' and found ~= '' and found ~= ARGV[3] then
  local value = redis.call('GETRANGE', KEYS[1], 0, ARGV[4])
  if #value > tonumber(ARGV[4]) then
    return {'long', found}
  end
  return {'value', value}
end

local lease = redis.pcall('HGETALL', KEYS[2])
local left = redis.call('PTTL', KEYS[2])
if lease.err or left == -1 then -- not a hash, or without an end: not ours
  redis.call('DEL', KEYS[2])
  lease = {}
end
local token
for i = 1, #lease, 2 do
  local field, value = lease[i], lease[i + 1]
  if field == 't' then
    token = value
  elseif field:sub(1, 2) == 'h:' then
    local now, ends = redis.call('TIME'), tonumber(value)
    if ends and ends > now[1] * 1000 + math.floor(now[2] / 1000) then
      return {'held'}
    end
  end
end
if token and token ~= ARGV[1] then
  redis.call('HSET', KEYS[2], 'w', '1')
  return {'wait', left}
end
redis.call('HSET', KEYS[2], 't', ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return {'granted'}
