-- Writes a piece of a snapshot that is not in use yet, and extends the lease.
-- KEYS  1 lease, 2 snapshot
-- ARGV  1 token of the lease, 2 number of the piece, 3 its bytes, 4 life of the snapshot in
--       ms, 5 life of the lease in ms
-- Gives 1, or 0 if the lease is gone or somebody else has it.
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
return 1
