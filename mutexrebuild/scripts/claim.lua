-- Begins a Set: drops the value, and takes the lease from whoever has it. What is
-- under way under another lease cannot be published any more; holds stay.
-- KEYS  1 value, 2 lease
-- ARGV  1 token, 2 life of the lease in ms
-- Gives 1.
local left = redis.call('PTTL', KEYS[2])
redis.call('DEL', KEYS[1]) -- first, so that a server without memory lets the rest through
if left == -1 or type(redis.pcall('HGET', KEYS[2], 't')) == 'table' then -- without an end, or not a hash: not ours
  redis.call('DEL', KEYS[2])
end
redis.call('HSET', KEYS[2], 't', ARGV[1])
redis.call('PEXPIRE', KEYS[2], math.max(left, tonumber(ARGV[2])))
return 1
