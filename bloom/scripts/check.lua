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
try('SET', redis.pcall('SET', KEYS[1], 'x', 'PX', 5000))
try('GET', redis.pcall('GET', KEYS[1]))
try('TYPE', redis.pcall('TYPE', KEYS[1]))
try('EXISTS', redis.pcall('EXISTS', KEYS[1]))
redis.pcall('DEL', KEYS[1])
try('HSET', redis.pcall('HSET', KEYS[1], 'a', 1))
redis.pcall('PEXPIRE', KEYS[1], 5000)
try('HGET', redis.pcall('HGET', KEYS[1], 'a'))
try('HMGET', redis.pcall('HMGET', KEYS[1], 'a'))
try('HDEL', redis.pcall('HDEL', KEYS[1], 'a'))
try('XADD', redis.pcall('XADD', KEYS[1], '1-1', 'a', 1))
redis.pcall('PEXPIRE', KEYS[1], 5000)
try('XRANGE', redis.pcall('XRANGE', KEYS[1], '-', '+', 'COUNT', 1))
try('XREVRANGE', redis.pcall('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1))
try('XTRIM', redis.pcall('XTRIM', KEYS[1], 'MAXLEN', 1))
try('UNLINK', redis.pcall('UNLINK', KEYS[1]))
try('PUBLISH', redis.pcall('PUBLISH', ARGV[1], 'levee-check'))
return refused
