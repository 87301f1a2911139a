-- Shares a value that was loaded beside a writer with the other readers, for as long
-- as nothing happens to the key. Fields of the lease: "r" is the right to share, "v" the
-- value, "s" its schema, "u" until when it answers. Every invalidation and every Set removes them, so a
-- right from before it is void.
-- KEYS  1 lease
-- ARGV  1 right under which the load began, 2 the next right, 3 bytes, 4 their life in ms,
--       5 their schema
-- Gives 1 if the value is shared, 0 if it must not be: something has happened to the
--       key since the load began, or another value has been shared.
-- Asked again, it finds its own next right and gives 1 again.
local right = redis.pcall('HGET', KEYS[1], 'r')
if right == ARGV[2] then
  return 1
end
if right ~= ARGV[1] then
  return 0
end
local time, lease = redis.call('TIME'), redis.call('HGETALL', KEYS[1])
local now, held = time[1] * 1000 + math.floor(time[2] / 1000), false
local ends = now + tonumber(ARGV[4])
for i = 1, #lease, 2 do
  local hold = tonumber(lease[i + 1])
  if lease[i]:sub(1, 2) == 'h:' and hold and hold > now then
    held = true
    -- A hold for the lag of replicas ends without a word, and what was read under it
    -- with it. So the first end of a hold is that of the value.
    ends = math.min(ends, hold)
  end
end
if not held then
  return 0
end
redis.call('HSET', KEYS[1], 'r', ARGV[2], 'v', ARGV[3], 's', ARGV[5], 'u', string.format('%.0f', ends))
return 1
