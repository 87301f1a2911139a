-- Publishes a value, if the lease it was built or taken under still stands. So what reaches
-- the server late, after its writer has been told that it failed and somebody has
-- invalidated the key, does no harm.
-- KEYS  1 value, 2 lease
-- ARGV  1 token, 2 bytes ("" to leave no value), 3 life of the value in ms, 4 channel,
--       5 message: one that invalidates ("i...") is always published, another only if
--       somebody waits
-- Gives 1 if the value is published, 0 if it must not be: something happened to
--       the key since the lease was granted; 2 if a key of another type stands there,
--       3 if the message invalidates and the server does not take the value; without such a
--       message that is the error of SET. The lease ends all the same.
-- Asked again, it finds its own bytes and gives 1 again. It reads no more than those
-- and one: somebody else may have put there what takes long to read.
local news = ARGV[5]:sub(1, 1) == 'i'
if redis.pcall('HGET', KEYS[2], 't') ~= ARGV[1] then
  if news then
    redis.pcall('PUBLISH', ARGV[4], ARGV[5])
  end
  if redis.pcall('GETRANGE', KEYS[1], 0, #ARGV[2]) == ARGV[2] then
    return 1
  end
  return 0
end
local published, set = 1, {}
if not ours(redis.pcall('GETRANGE', KEYS[1], 0, 0)) then
  published = 2
elseif ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
else
  set = redis.pcall('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
local awaited = redis.call('HDEL', KEYS[2], 't', 'w') == 2
local holds = redis.call('HGETALL', KEYS[2])
if #holds > 0 then -- of writers beside the one that has taken the lease
  local at = now()
  local _, _, _, last = read(holds, at)
  redis.call('PEXPIRE', KEYS[2], last - at)
end
if news or awaited then
  redis.pcall('PUBLISH', ARGV[4], ARGV[5])
end
if set.err then
  return news and 3 or set
end
return published
