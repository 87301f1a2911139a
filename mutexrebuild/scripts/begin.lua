-- Asks for the right to rebuild a value.
-- KEYS  1 value, 2 lease
-- ARGV  1 token, 2 life of the lease in ms, 3 the first 64 bytes of the value
--       that the caller has seen and rejected ("" if it saw none), 4 the length in
--       bytes up to which it wants the value, 5 its schema
-- Gives {"value", bytes}  somebody has published one meanwhile
--       {"long", bytes}   something longer stands there; its first 64 bytes
--       {"held", right, bytes}  a writer holds the key: load, but do not publish.
--                         The right is for share.lua; the bytes are what was shared
--                         under it, "" for none
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
local time, fields, held = redis.call('TIME'), {}, false
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for i = 1, #lease, 2 do
  local field, value = lease[i], lease[i + 1]
  fields[field] = value
  held = held or field:sub(1, 2) == 'h:' and (tonumber(value) or 0) > now
end
local token = fields.t
if held then
  local right, shared = fields.r, ''
  if fields.v and fields.s ~= ARGV[5] then
    -- Another release shares it, which we cannot read. Its readers must not go on to see
    -- it when ours have seen something newer.
    redis.call('HDEL', KEYS[2], 'v', 's', 'u')
    right = nil
  end
  if not right then
    local set = redis.pcall('HSET', KEYS[2], 'r', ARGV[1])
    right = type(set) == 'table' and '' or ARGV[1] -- without memory nobody shares
  elseif fields.v and (tonumber(fields.u) or 0) > now and #fields.v <= tonumber(ARGV[4]) then
    shared = fields.v
  end
  return {'held', right, shared}
end
if token and token ~= ARGV[1] then
  redis.call('HSET', KEYS[2], 'w', '1')
  return {'wait', left}
end
redis.call('HSET', KEYS[2], 't', ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return {'granted'}
