-- Puts a generation in use, lets the old one expire, and releases the lease.
-- KEYS  1 record, 2 log, 3 lease of the Rebuild, then checksums and pieces of the new
--       generation, then those of the old one
-- ARGV  1 header, 2 token of the lease, 3 new generation, 4 old one, 5 number of keys of
--       the new one, 6 life in ms, 7 life of the old one in ms, 8 channel, 9 message
-- Gives {"ok"}
--       {"lost"}  the record, the lease or the announcement of the new generation is gone,
--       or another one is there
--       {"stale", current}  the old one is not the one in use
-- Run twice, it finds the new generation in use and gives ok.
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
redis.call('HSET', KEYS[1], 'current', ARGV[3], 'next', '', 'token', '', 'since', whole(now()))
local last_new = 3 + tonumber(ARGV[5])
if #KEYS > last_new then
  redis.pcall('HSET', KEYS[last_new + 1], 'n', '') -- no number: nobody can load the old one any more
end
for i, key in ipairs(KEYS) do
  if i ~= 3 then
    redis.call('PEXPIRE', key, i <= last_new and ARGV[6] or ARGV[7])
  end
end
redis.call('DEL', KEYS[3])
redis.call('PUBLISH', ARGV[8], ARGV[9])
return {'ok'}
