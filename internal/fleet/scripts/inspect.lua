-- Reads the state of an id, and changes nothing.
-- KEYS    1 value, 2 lease
-- ARGV    1 the largest length in bytes of a value that is wanted; of a longer one, one byte more
-- Returns {value, ms, lease, awaited, hold, ...}: the value, how long the value and the lease
--         last in ms (below 0: there is none), 1 if a caller waits for the lease, and how long each
--         hold lasts in ms. A value or lease of another type is nil.
local value, lease = ours(redis.pcall('GETRANGE', KEYS[1], 0, ARGV[1])), ours(redis.pcall('HGETALL', KEYS[2]))
if type(value) == 'table' then
  return value
elseif lease and lease.err then
  return lease
end
local at, left, awaited = now(), false, 0
local token, holds = read(lease or {}, at)
if lease then
  left, awaited = token and redis.call('PTTL', KEYS[2]) or -1, redis.call('HGET', KEYS[2], 'w') and 1 or 0
end
local reply = {value or false, redis.call('PTTL', KEYS[1]), left, awaited}
for field, ends in pairs(holds) do
  if field:sub(1, 1) == 'h' then
    reply[#reply + 1] = ends - at
  end
end
return reply
