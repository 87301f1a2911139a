-- Prolongs a lease that still stands. It never takes one anew: what has been
-- invalidated must stay so.
-- KEYS  1 lease
-- ARGV  1 token, 2 life in ms
-- Gives 1, or 0 if the lease is gone or another's.
local token = redis.pcall('HGET', KEYS[1], 't')
if token ~= ARGV[1] then
  return 0
end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
