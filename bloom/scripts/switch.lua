-- Puts a generation in use in place of the old one, which ends after a time of
-- grace, and ends the turn.
-- KEYS  1 record, 2 log, 3 lease of the rebuild, then sums and pieces of the new
--       generation, then those of the old one
-- ARGV  1 header, 2 token, 3 new generation, 4 old one, 5 number of keys of the new
--       one, 6 life in ms, 7 grace in ms, 8 channel, 9 message
-- Gives {"ok"}
--       {"lost"}  the record, the lease or the new generation is gone or another
--       {"stale", current}  the old one is not the one in use
-- Asked again, it finds the new generation in use and says ok.
if redis.pcall('HGET', KEYS[1], 'header') ~= ARGV[1] then
  return {'lost'}
end
local record = redis.call('HMGET', KEYS[1], 'current', 'next', 'token')
if record[1] == ARGV[3] then
  return {'ok'}
end
if record[2] ~= ARGV[3] or record[3] ~= ARGV[2] or redis.pcall('GET', KEYS[3]) ~= ARGV[2] then
  return {'lost'}
end
if record[1] ~= ARGV[4] then
  return {'stale', record[1] or ''}
end
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
redis.call('HSET', KEYS[1], 'current', ARGV[3], 'next', '', 'token', '', 'since', now)
if #KEYS > 3 + tonumber(ARGV[5]) then
  redis.pcall('HSET', KEYS[4 + tonumber(ARGV[5])], 'n', '') -- no longer to be loaded
end
for i, key in ipairs(KEYS) do
  if i ~= 3 then
    local new = i <= 3 + tonumber(ARGV[5])
    redis.call('PEXPIRE', key, new and ARGV[6] or ARGV[7])
  end
end
redis.call('DEL', KEYS[3])
redis.call('PUBLISH', ARGV[8], ARGV[9])
return {'ok'}
