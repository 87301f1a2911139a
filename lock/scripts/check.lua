-- Finds out which commands the server refuses: runs each command of this package's scripts, on a key
-- that nobody else has. It leaves nothing behind, or the key for five seconds if it may not delete.
-- KEYS  1 the key
-- ARGV  1 a channel, for a message that nobody reads
-- Gives the name and the error of each command that failed.
local refused = {}
local function try(command, reply)
  -- The key has the wrong type only where DEL is refused.
  if type(reply) == 'table' and reply.err and not string.find(reply.err, 'WRONGTYPE') then
    refused[#refused + 1] = command
    refused[#refused + 1] = reply.err
  end
end
try('TIME', redis.pcall('TIME'))
try('DEL', redis.pcall('DEL', KEYS[1]))
try('PEXPIRE', redis.pcall('PEXPIRE', KEYS[1], 5000))
if #refused > 2 then
  return refused -- a key would stay
end
try('HSET', redis.pcall('HSET', KEYS[1], 'a', 1))
redis.pcall('PEXPIRE', KEYS[1], 5000)
try('HMGET', redis.pcall('HMGET', KEYS[1], 'a'))
try('EXISTS', redis.pcall('EXISTS', KEYS[1]))
try('HDEL', redis.pcall('HDEL', KEYS[1], 'a'))
try('ZADD', redis.pcall('ZADD', KEYS[1], 1, 'a'))
redis.pcall('PEXPIRE', KEYS[1], 5000)
try('ZCARD', redis.pcall('ZCARD', KEYS[1]))
try('ZRANK', redis.pcall('ZRANK', KEYS[1], 'a'))
try('ZSCORE', redis.pcall('ZSCORE', KEYS[1], 'a'))
try('ZRANGE', redis.pcall('ZRANGE', KEYS[1], 0, 0))
try('ZRANGEBYSCORE', redis.pcall('ZRANGEBYSCORE', KEYS[1], 0, 1))
try('ZREM', redis.pcall('ZREM', KEYS[1], 'a'))
redis.pcall('DEL', KEYS[1])
try('PUBLISH', redis.pcall('PUBLISH', ARGV[1], 'levee-check'))
return refused
