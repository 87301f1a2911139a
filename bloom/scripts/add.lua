-- Puts ids into the generation in use, into the one that a rebuild is about to
-- switch to, and into the log.
-- KEYS  1 record, 2 log, 3 lease of the rebuild, then for each generation that the
--       caller knows: its sums, and its pieces that are touched, each followed by its
--       counters if it has some
-- ARGV  1 header, 2 hashes of the ids (16 bytes each), 3 entries to keep in the log,
--       4 life in ms, 5 life of what belongs to the next generation in ms,
--       6 channel, 7 message,
--       then for each generation: its name, the number of pieces touched, and for
--       each of those: its index, the bytes of its counters (0 if it has none), the
--       number of positions, the positions in it
-- Gives {"ok", entry in the log, current, next}
--       {"stale", current, next}  there is a generation the caller has not given
--       {"lost"}                  the record is gone, or another
-- Asked again, it sets the same bits, counts them twice, and logs the ids once more:
-- what is counted twice stays longer, which is no harm. It does not fail for what is
-- corrupt: a generation that it finds so is given up, and a broken log
-- begins anew, which everybody who follows it notices.
if redis.pcall('HGET', KEYS[1], 'header') ~= ARGV[1] then
  return {'lost'}
end
local record = redis.call('HMGET', KEYS[1], 'current', 'next', 'token')
local current, nxt = record[1] or '', record[2] or ''
if nxt ~= '' and redis.pcall('GET', KEYS[3]) ~= record[3] then
  nxt = '' -- its rebuilder is gone; it is never taken up again
  redis.call('HSET', KEYS[1], 'next', '')
end

-- Which of the given generations are alive, and where they begin.
local starts, key, arg = {}, 4, 8
while arg <= #ARGV do
  starts[ARGV[arg]] = {key, arg}
  local pieces = tonumber(ARGV[arg + 1])
  key, arg = key + 1, arg + 2
  for _ = 1, pieces do
    key = key + (ARGV[arg + 1] == '0' and 1 or 2)
    arg = arg + 3 + tonumber(ARGV[arg + 2])
  end
end
if (current ~= '' and not starts[current]) or (nxt ~= '' and not starts[nxt]) then
  return {'stale', current, nxt}
end

-- Counts a position once more, unless its counter is full, and gives how often it
-- was set: two to a byte, the even one in its high half.
local function count(counters, position)
  local at = math.floor(position / 2)
  local byte = redis.call('GETRANGE', counters, at, at):byte()
  local unit = position % 2 == 0 and 16 or 1
  local n = math.floor(byte / unit) % 16
  if n < 15 then
    redis.call('SETRANGE', counters, at, string.char(byte + unit))
  end
  return n
end

-- Counters that are not as long as they were made have been lost; but those of a piece
-- in which nothing is set need not be there yet.
local function ready(counters, bytes, sums, index)
  local length = redis.pcall('STRLEN', counters)
  if length == 0 and redis.pcall('HGET', sums, 'n' .. index) == '0' then
    redis.call('SETRANGE', counters, bytes - 1, '\0')
    return true
  end
  return length == bytes
end

-- Sets the positions of one piece and keeps its sums: how many bits are set, and
-- the sum of all bytes, each times its place. Gives the number of fresh ones.
local function set(sums, piece, counters, index, first, last)
  local fresh, weight = 0, 0
  for i = first, last do
    local old = redis.pcall('SETBIT', piece, ARGV[i], 1)
    if type(old) ~= 'number' or counters and (count(counters, tonumber(ARGV[i])) > 0) ~= (old == 1) then
      return nil
    end
    if old == 0 then
      local position = tonumber(ARGV[i])
      fresh = fresh + 1
      weight = weight + 2 ^ (7 - position % 8) * (math.floor(position / 8) + 1)
    end
  end
  if fresh > 0 then
    local n = redis.pcall('HINCRBY', sums, 'n' .. index, fresh)
    local w = redis.pcall('HINCRBY', sums, 'w' .. index, string.format('%.0f', weight))
    if type(n) ~= 'number' or type(w) ~= 'number' then
      return nil
    end
  end
  return fresh
end

local function fill(start, life)
  local key, arg = start[1], start[2] + 2
  local sums, total = KEYS[key], 0
  if type(redis.pcall('HGET', sums, 'n')) ~= 'string' then
    return false
  end
  for _ = 1, tonumber(ARGV[start[2] + 1]) do
    local index, bytes, last = ARGV[arg], tonumber(ARGV[arg + 1]), arg + 2 + tonumber(ARGV[arg + 2])
    local piece, counters = KEYS[key + 1], bytes > 0 and KEYS[key + 2]
    if counters and not ready(counters, bytes, sums, index) then
      return false
    end
    local fresh = set(sums, piece, counters, index, arg + 3, last)
    if not fresh then
      return false
    end
    redis.call('PEXPIRE', piece, life)
    if counters then
      redis.call('PEXPIRE', counters, life)
    end
    total, arg, key = total + fresh, last + 1, key + (counters and 2 or 1)
  end
  redis.call('PEXPIRE', sums, life)
  return type(redis.pcall('HINCRBY', sums, 'n', total)) == 'number'
end

if current ~= '' and not fill(starts[current], ARGV[4]) then
  current = ''
  redis.call('HSET', KEYS[1], 'current', '')
end
if nxt ~= '' and not fill(starts[nxt], ARGV[5]) then
  nxt = ''
  redis.call('HSET', KEYS[1], 'next', '')
end

local kind = redis.call('TYPE', KEYS[2]).ok
if kind ~= 'stream' and kind ~= 'none' then
  redis.call('DEL', KEYS[2])
end
local entry = ''
for i = 1, #ARGV[2], 16 do
  entry = redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], '*', 'h', ARGV[2]:sub(i, i + 15))
end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
redis.call('PUBLISH', ARGV[6], ARGV[7])
return {'ok', entry, current, nxt}
