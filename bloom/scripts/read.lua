-- Reads a piece of a snapshot. It is a script because a client may send plain reads to
-- replicas, and sends scripts to the master.
-- KEYS  1 snapshot
-- ARGV  1 number of the piece
-- Gives its bytes, or "" if it is missing.
local bytes = redis.pcall('HGET', KEYS[1], ARGV[1])
return type(bytes) == 'string' and bytes or ''
