-- Releases a lease.
-- KEYS  1 lease
-- ARGV  1 token
-- Gives 1, or 0 if the lease is gone or somebody else has it.
return redis.pcall('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0
