-- Publishes a value, if its lease is still held. So a commit does no harm if it reaches the
-- server late, after its caller got an error and a writer has invalidated the key.
-- KEYS    1 value, 2 lease
-- ARGV    1 token, 2 bytes ("" to leave no value), 3 life of the value in ms, 4 channel,
--         5 message: one that invalidates ("i...") is always published, another only if
--         a caller waits for the lease
-- Returns 1 if the value is published; 0 if it must not be, because the lease has ended;
--         2 if the key of the value is of another type; 3 if the server does not store the
--         value and the message invalidates. With another message it returns the error
--         of SET then. The lease ends in each case.
-- If it is repeated, it finds its own bytes and returns 1 again. It reads only one byte more
-- than those: another application may have stored a value that takes long to read.
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
if #holds > 0 then -- holds of writers other than the one that has taken the lease
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
