-- Issues a ticket for a Remove.
-- KEYS  1 record, 2 tickets
-- ARGV  1 header, 2 life of a ticket in ms
-- Gives {"ok", ticket}, or {"lost"} if the record is gone or another.
-- Asked again, it issues another one, and nobody spends the first.
if redis.pcall('HGET', KEYS[1], 'header') ~= ARGV[1] then
  return {'lost'}
end
local kind = redis.call('TYPE', KEYS[2]).ok
if kind ~= 'zset' and kind ~= 'none' then
  redis.call('DEL', KEYS[2])
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('(%.0f', now - ARGV[2]))
local ticket = string.format('%.0f', redis.call('HINCRBY', KEYS[1], 'tickets', 1))
redis.call('ZADD', KEYS[2], string.format('%.0f', now), ticket)
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return {'ok', ticket}
