-- Prolongs the life of the filter.
-- KEYS  1 record, 2 log, 3 checksums of the generation, then its pieces
-- ARGV  1 generation, 2 life in ms
-- Gives 1, or 0 if the generation is no longer in use.
if redis.pcall('HGET', KEYS[1], 'current') ~= ARGV[1] then
  return 0
end
for _, key in ipairs(KEYS) do
  redis.call('PEXPIRE', key, ARGV[2])
end
return 1
