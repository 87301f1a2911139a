-- Gives a lease back without a value, so that other callers need not wait for its end.
-- KEYS    1 lease
-- ARGV    1 token, 2 channel, 3 wake-up message
-- Returns 1, or 0 if the lease has ended or another caller has it.
if redis.pcall('HGET', KEYS[1], 't') ~= ARGV[1] then
  return 0
end
if redis.call('HDEL', KEYS[1], 't', 'w') == 2 then
  redis.pcall('PUBLISH', ARGV[2], ARGV[3])
end
return 1
