-- Renews a lease that is still held. It never grants one anew, because a lease that an
-- invalidation has ended must stay ended.
-- KEYS    1 lease
-- ARGV    1 token, 2 life in ms
-- Returns 1, or 0 if the lease has ended or another caller has it.
local token = redis.pcall('HGET', KEYS[1], 't')
if token ~= ARGV[1] then
  return 0
end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
