-- Reads a part of a piece. A script, so that a client that sends its reads to
-- replicas sends this one to the master.
-- KEYS  1 piece
-- ARGV  1 first byte, 2 last byte
-- Gives the bytes, fewer or none where the piece ends or is not there.
local bytes = redis.pcall('GETRANGE', KEYS[1], ARGV[1], ARGV[2])
return type(bytes) == 'string' and bytes or ''
