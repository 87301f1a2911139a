-- Takes ids out of the generation in use.
-- KEYS  1 record, 2 log, 3 tickets, 4 checksums of the generation, then for each of its
--       pieces that an id touches: the piece, its counters
-- ARGV  1 header, 2 generation that the caller takes for the one in use, 3 ticket,
--       4 minimum age of the generation in ms when the ticket was issued, -1 for none: if
--       it is younger, nothing is removed, 5 entries to keep in the log, 6 life in ms,
--       7 channel, 8 message, 9 positions of an id, 10 number of pieces, for each of
--       those: its index, the length of its counters in bytes; then for each position of
--       each id: which of the pieces, the position in it
-- Gives {"ok", current, next}
--       {"stale", current, next}  nothing was done: another generation is in use
--       {"lost"}  the record is gone, or another one is there
-- Run twice, it finds that its ticket is spent and does nothing: counting down twice would
-- clear positions that other ids need. If it finds the generation damaged, it takes it
-- out of the record, as an add does.
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
local min_age = tonumber(ARGV[4])
if current == '' or min_age >= 0 and tonumber(issued) - since < min_age then
  return {'ok', current, nxt}
end

local function give_up()
  redis.call('HSET', KEYS[1], 'current', '')
  return {'ok', '', nxt}
end

local checksums, PIECE_BITS = KEYS[4], 2 ^ 25
local pieces, args_read = {}, 10
for i = 1, tonumber(ARGV[10]) do
  local piece = {bits = KEYS[3 + 2 * i], counters = KEYS[4 + 2 * i], index = ARGV[args_read + 1], cleared = 0, weight = 0}
  local length = redis.pcall('STRLEN', piece.counters)
  local untouched = length == 0 and redis.pcall('HGET', checksums, 'n' .. piece.index) == '0'
  if length ~= tonumber(ARGV[args_read + 2]) and not untouched then
    return give_up()
  end
  pieces[i], args_read = piece, args_read + 2
end

-- place_of returns the piece and the position in it that ARGV names from i on.
local function place_of(i)
  return pieces[tonumber(ARGV[i])], tonumber(ARGV[i + 1])
end

-- holds returns whether an id is in, nil if bits and counters contradict each other.
local function holds(first, last)
  local all = true
  for i = first, last, 2 do
    local piece, position = place_of(i)
    local n = read_counter(piece.counters, position)
    if redis.pcall('GETBIT', piece.bits, position) ~= (n > 0 and 1 or 0) then
      return nil
    end
    all = all and n > 0
  end
  return all
end

-- take counts the positions of an id down and clears those that reach zero.
local cleared = {} -- in the whole table
local function take(first, last)
  for i = first, last, 2 do
    local piece, position = place_of(i)
    local n, place, byte, one = read_counter(piece.counters, position)
    if n > 0 and n < FULL then
      redis.call('SETRANGE', piece.counters, place, string.char(byte - one))
    end
    if n == 1 then
      redis.call('SETBIT', piece.bits, position, 0)
      piece.cleared, piece.weight = piece.cleared + 1, piece.weight + weight(position)
      cleared[#cleared + 1] = whole(piece.index * PIECE_BITS + position)
    end
  end
end

local args_of_id, sound = 2 * tonumber(ARGV[9]), true
for first = args_read + 1, #ARGV, args_of_id do
  local last = first + args_of_id - 1
  local there = holds(first, last)
  if there then
    take(first, last)
  elseif there == nil then
    sound = false
    break
  end
end
for _, piece in ipairs(pieces) do
  if piece.cleared > 0 then
    sound = change_checksums(checksums, piece.index, -piece.cleared, -piece.weight) and sound
  end
end
if #cleared > 0 then
  sound = type(redis.pcall('HINCRBY', checksums, 'n', -#cleared)) == 'number' and sound
  append(KEYS[2], ARGV[5], 'c', current, 'p', table.concat(cleared, ' '))
  redis.call('PEXPIRE', KEYS[2], ARGV[6])
  redis.call('PUBLISH', ARGV[7], ARGV[8])
end
if not sound then
  return give_up()
end
return {'ok', current, nxt}
