-- Appends ids to the log.
-- KEYS  1 record, 2 log
-- ARGV  1 header, 2 hashes of the ids (16 bytes each), 3 how long the log of a filter
--       without a snapshot keeps an entry in ms, 4 how many entries may follow a snapshot,
--       5 channel, 6 message, 7 how many entries the log keeps if the clock was set back
-- Gives {"ok", newest entry}, or {"lost"} if the record is gone or another one is there.
-- Run twice, it logs the ids twice, which does no harm. If so many entries follow the
-- snapshot that no process seems to write a new one, it gives the snapshot up: every process
-- abstains, and from then on the log stays short.
local record = redis.pcall('HMGET', KEYS[1], 'header', 'last', 'shape', 'at')
local n, ms = number(record[2])
if record[1] ~= ARGV[1] or not n then
  return {'lost'}
end
local clock = now()
local last, at = whole(math.max(ms, clock)) .. '-', number(record[4]) or 0
if redis.call('TYPE', KEYS[2]).ok ~= 'stream' then
  redis.call('DEL', KEYS[2]) -- the next entry has no predecessor, which every reader notices
end
for i = 1, #ARGV[2], 16 do
  n = n + 1
  redis.call('XADD', KEYS[2], last .. whole(n), 'h', ARGV[2]:sub(i, i + 15))
end
last = last .. whole(n)
redis.call('HSET', KEYS[1], 'last', last)
if record[3] == '' and ms - clock > tonumber(ARGV[3]) then -- the clock was put back: no entry would ever be old
  redis.call('XTRIM', KEYS[2], 'MAXLEN', ARGV[7])
elseif record[3] == '' then
  shorten(KEYS[2], clock - ARGV[3])
elseif n - at > tonumber(ARGV[4]) then
  redis.call('HSET', KEYS[1], 'shape', '')
end
redis.pcall('PUBLISH', ARGV[5], ARGV[6])
return {'ok', last}
