-- Takes ids out of the generation in use.
-- KEYS  1 record, 2 log, 3 tickets, 4 sums of the generation, then for each of its
--       pieces that is touched: the piece, its counters
-- ARGV  1 header, 2 generation that the caller takes for the one in use, 3 ticket,
--       4 how much younger than the ticket the generation may not be, in ms, or nothing
--       is taken out of it; -1 if that does not matter, 5 entries to keep in the log, 6 life in ms, 7 channel, 8 message, 9 positions of an id,
--       10 number of pieces, for each of those: its index, the bytes of its counters;
--       then for each position of each id: which of the pieces, the position in it
-- Gives {"ok", current, next}
--       {"stale", current, next}  another generation is in use
--       {"lost"}                  the record is gone, or another
-- Asked again, it finds the ticket spent and does nothing: to count down twice would
-- clear what others stand on. What is corrupt is given up, as by an add.
if redis.pcall('HGET', KEYS[1], 'header') ~= ARGV[1] then
  return {'lost'}
end
local record = redis.call('HMGET', KEYS[1], 'current', 'next', 'since')
local current, nxt, since = record[1] or '', record[2] or '', tonumber(record[3]) or 0
if current ~= ARGV[2] then
  return {'stale', current, nxt}
end
local issued = redis.pcall('ZSCORE', KEYS[3], ARGV[3])
if type(issued) ~= 'string' then
  return {'ok', current, nxt}
end
redis.call('ZREM', KEYS[3], ARGV[3])
local quiet = tonumber(ARGV[4])
if current == '' or quiet >= 0 and tonumber(issued) < since + quiet then
  return {'ok', current, nxt}
end

local function give_up()
  redis.call('HSET', KEYS[1], 'current', '')
  return {'ok', '', nxt}
end

local pieces, arg = {}, 11
for i = 1, tonumber(ARGV[10]) do
  local piece = {bits = KEYS[3 + 2 * i], counters = KEYS[4 + 2 * i], index = ARGV[arg], cleared = 0, weight = 0}
  local length = redis.pcall('STRLEN', piece.counters)
  local untouched = length == 0 and redis.pcall('HGET', KEYS[4], 'n' .. piece.index) == '0'
  if length ~= tonumber(ARGV[arg + 1]) and not untouched then
    return give_up()
  end
  pieces[i], arg = piece, arg + 2
end

-- How often a position is set: two to a byte, the even one in its high half.
local function counted(piece, position)
  local at = math.floor(position / 2)
  local byte = redis.call('GETRANGE', piece.counters, at, at):byte() or 0
  local unit = position % 2 == 0 and 16 or 1
  return math.floor(byte / unit) % 16, at, byte - unit
end

local function holds(first, last)
  local all = true
  for i = first, last, 2 do
    local piece = pieces[tonumber(ARGV[i])]
    local n = counted(piece, tonumber(ARGV[i + 1]))
    if redis.pcall('GETBIT', piece.bits, ARGV[i + 1]) ~= (n > 0 and 1 or 0) then
      return nil
    end
    all = all and n > 0
  end
  return all
end

local cleared = {}
local function take(first, last)
  for i = first, last, 2 do
    local piece, position = pieces[tonumber(ARGV[i])], tonumber(ARGV[i + 1])
    local n, at, byte = counted(piece, position)
    if n > 0 and n < 15 then -- a full one has lost count, and stays
      redis.call('SETRANGE', piece.counters, at, string.char(byte))
    end
    if n == 1 then
      redis.call('SETBIT', piece.bits, position, 0)
      piece.cleared = piece.cleared + 1
      piece.weight = piece.weight + 2 ^ (7 - position % 8) * (math.floor(position / 8) + 1)
      cleared[#cleared + 1] = string.format('%.0f', piece.index * 2 ^ 25 + position)
    end
  end
end

local step, sound = 2 * tonumber(ARGV[9]), true
for first = arg, #ARGV, step do
  local there = holds(first, first + step - 1)
  if there then
    take(first, first + step - 1)
  elseif there == nil then
    sound = false
    break
  end
end
for _, piece in ipairs(pieces) do
  if piece.cleared > 0 then
    local n = redis.pcall('HINCRBY', KEYS[4], 'n' .. piece.index, -piece.cleared)
    local w = redis.pcall('HINCRBY', KEYS[4], 'w' .. piece.index, string.format('%.0f', -piece.weight))
    sound = sound and type(n) == 'number' and type(w) == 'number'
  end
end
if #cleared > 0 then
  sound = type(redis.pcall('HINCRBY', KEYS[4], 'n', -#cleared)) == 'number' and sound
  local kind = redis.call('TYPE', KEYS[2]).ok
  if kind ~= 'stream' and kind ~= 'none' then
    redis.call('DEL', KEYS[2])
  end
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[5], '*', 'c', current, 'p', table.concat(cleared, ' '))
  redis.call('PEXPIRE', KEYS[2], ARGV[6])
  redis.call('PUBLISH', ARGV[7], ARGV[8])
end
if not sound then
  return give_up()
end
return {'ok', current, nxt}
