-- Announces a generation that is uploaded: from now on adds go into it too.
-- KEYS  1 record, 2 lease of the Rebuild, 3 its checksums
-- ARGV  1 header, 2 token of the lease, 3 generation, 4 life of the checksums in ms, then
--       fields and values of the checksums
-- Gives 1, or 0 if the record or the lease is gone, or another one is there.
if redis.pcall('HGET', KEYS[1], 'header') ~= ARGV[1] or redis.pcall('GET', KEYS[2]) ~= ARGV[2] then
  return 0
end
for i = 5, #ARGV, 2 do
  redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 1])
end
redis.call('PEXPIRE', KEYS[3], ARGV[4])
redis.call('HSET', KEYS[1], 'next', ARGV[3], 'token', ARGV[2])
return 1
