-- Runs each command that the scripts of this package use, on a key of its own, to find out which of
-- them the server refuses. It deletes the key; if it may not, the key ends after five seconds.
-- KEYS    1 the key
-- ARGV    1 a channel, for a message that receivers ignore
-- Returns the name and the error of each command that failed.
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
  return refused -- a key would stay for ever
end
try('SET', redis.pcall('SET', KEYS[1], 'x', 'PX', 5000))
try('GETRANGE', redis.pcall('GETRANGE', KEYS[1], 0, 0))
try('PTTL', redis.pcall('PTTL', KEYS[1]))
redis.pcall('DEL', KEYS[1])
try('HSET', redis.pcall('HSET', KEYS[1], 'a', 1))
redis.pcall('PEXPIRE', KEYS[1], 5000)
try('HGET', redis.pcall('HGET', KEYS[1], 'a'))
try('HGETALL', redis.pcall('HGETALL', KEYS[1]))
try('HDEL', redis.pcall('HDEL', KEYS[1], 'a'))
try('PUBLISH', redis.pcall('PUBLISH', ARGV[1], 'levee-check'))
return refused
