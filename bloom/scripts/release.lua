-- Releases the lease of a Rebuild.
-- KEYS  1 lease
-- ARGV  1 token, 2 channel, 3 message
-- Gives 1, or 0 if the lease is gone or another Rebuild has it.
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', ARGV[2], ARGV[3])
return 1
