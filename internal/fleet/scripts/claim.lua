-- Begins a Set or a Refresh: takes the lease from whoever has it. What is under way
-- under another lease cannot be published any more; holds stay. A Set drops
-- the values. A Refresh leaves its own to answer until set.lua replaces it, and gives way
-- to a writer's hold.
-- KEYS  1 value, 2 lease, 3... values of other schemas
-- ARGV  1 token, 2 life of the lease in ms, 3 "drop" or "keep" the value
-- Gives {1, n}, or {0, n} if the lease is not taken: a writer holds the key, and then
--       nothing is done, or a key of another type stands there. n of the keys are such.
local keep = ARGV[3] == 'keep'
local left, lease = redis.call('PTTL', KEYS[2]), ours(redis.pcall('HGETALL', KEYS[2]))
if lease and lease.err then
  return lease
end
if keep and lease and left ~= -1 then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  for i = 1, #lease, 2 do
    if lease[i]:sub(1, 2) == 'h:' and (tonumber(lease[i + 1]) or 0) > now then
      return {0, 0}
    end
  end
end
local foreign = drop(keep and 1) -- first, so that a server without memory lets the rest through
if not lease then
  return {0, foreign + 1}
end
if left == -1 then -- without an end: not what we have left there
  redis.call('DEL', KEYS[2])
end
redis.call('HSET', KEYS[2], 't', ARGV[1])
redis.call('PEXPIRE', KEYS[2], math.max(left, tonumber(ARGV[2])))
return {1, foreign}
