-- Extends the TTL of the filter's keys.
-- KEYS  1 record, 2 log, 3 snapshot
-- ARGV  1 life in ms
-- Gives 1.
for _, key in ipairs(KEYS) do
  redis.call('PEXPIRE', key, ARGV[1])
end
return 1
