-- Writes a part of a piece of a generation that nobody uses yet.
-- KEYS  1 lease of the Rebuild, 2 piece
-- ARGV  1 token of the lease, 2 first byte, 3 bytes, 4 life of the piece in ms
-- Gives 1, or 0 if the lease is gone or another Rebuild has it.
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('SETRANGE', KEYS[2], ARGV[2], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
return 1
