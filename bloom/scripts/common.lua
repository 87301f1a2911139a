-- Helpers of several scripts, in front of which this file stands.

-- now returns the server's clock in ms.
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- whole writes a number as Redis reads it: tostring would give 1.7e+12.
local function whole(number)
  return string.format('%.0f', number)
end

-- keep_type deletes a key that is not of the wanted type.
local function keep_type(key, wanted)
  local found = redis.call('TYPE', key).ok
  if found ~= wanted and found ~= 'none' then
    redis.call('DEL', key)
  end
end

-- append adds an entry to the log and returns its ID. If the key of the log holds something
-- else, a new log begins, which every reader notices. Any other error, as that of a
-- Redis without memory, ends the script and leaves the log as it is.
local function append(log, keep, field, ...)
  local entry = redis.pcall('XADD', log, 'MAXLEN', '~', keep, '*', field, ...)
  if type(entry) == 'table' then
    keep_type(log, 'stream')
    entry = redis.call('XADD', log, '*', field, ...)
  end
  return entry
end

-- Counters have 4 bits. A full one has lost count and is never counted down.
local FULL = 15

-- read_counter returns the counter of a position in a piece, and what it takes to write
-- it: the place of its byte, the byte, and what one is worth in it. Two counters share a
-- byte, and that of the even position is the high half.
local function read_counter(counters, position)
  local odd = position % 2
  local place, one = (position - odd) / 2, odd == 0 and 16 or 1
  local byte = redis.call('GETRANGE', counters, place, place):byte() or 0
  return math.floor(byte / one) % 16, place, byte, one
end

-- weight returns what a set bit adds to the weight of its piece: the bit's value in its
-- byte, times the place of the byte, counted from one.
local function weight(position)
  local bit = position % 8 -- counted from the highest
  return 2 ^ (7 - bit) * ((position - bit) / 8 + 1)
end

-- change_checksums adds to the number of set bits of a piece, n<index>, and to its weight,
-- w<index>. It returns false if one of them is no number.
local function change_checksums(checksums, index, bits, weight_of_bits)
  local n = redis.pcall('HINCRBY', checksums, 'n' .. index, bits)
  local w = redis.pcall('HINCRBY', checksums, 'w' .. index, whole(weight_of_bits))
  return type(n) == 'number' and type(w) == 'number'
end

