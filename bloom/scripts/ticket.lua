-- Issues a ticket for a Remove.
-- KEYS  1 record, 2 tickets: a sorted set, by the time at which they were issued
-- ARGV  1 header, 2 life of a ticket in ms
-- Gives {"ok", ticket}, or {"lost"} if the record is gone or another one is there.
-- Run twice, it issues two tickets, and nobody spends the first.
if redis.pcall('HGET', KEYS[1], 'header') ~= ARGV[1] then
  return {'lost'}
end
keep_type(KEYS[2], 'zset')
local issued = now()
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(' .. whole(issued - ARGV[2]))
local ticket = whole(redis.call('HINCRBY', KEYS[1], 'tickets', 1))
redis.call('ZADD', KEYS[2], whole(issued), ticket)
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return {'ok', ticket}
