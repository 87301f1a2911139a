-- Reads a part of a piece. It is a script because a client may send plain reads to
-- replicas, and sends scripts to the master.
-- KEYS  1 piece
-- ARGV  1 first byte, 2 last byte
-- Gives the bytes, fewer or none where the piece ends or is not there.
local bytes = redis.pcall('GETRANGE', KEYS[1], ARGV[1], ARGV[2])
return type(bytes) == 'string' and bytes or ''
