-- Puts ids into the generation in use, into the one that a Rebuild has announced, and
-- into the log.
-- KEYS  1 record, 2 log, 3 lease of the Rebuild, then for each generation that the
--       caller knows: its checksums, and then for each of its pieces that an id touches:
--       the piece, and its counters if the filter counts
-- ARGV  1 header, 2 hashes of the ids (16 bytes each), 3 entries to keep in the log,
--       4 life in ms, 5 life of what belongs to the announced generation in ms,
--       6 channel, 7 message, then for each of these generations: its name, the number of
--       pieces, and for each piece: its index, the length of its counters in bytes (0 if
--       the filter does not count), the number of positions, the positions in the piece
-- Gives {"ok", entry in the log, current, next}
--       {"stale", current, next}  nothing was done: there is a generation that the caller
--       does not know
--       {"lost"}  the record is gone, or another one is there
-- Run twice, it sets the same bits, counts them twice, and logs the ids twice. That is
-- harmless: what is counted twice stays longer. It does not fail because of damage. If it
-- finds a generation damaged, it takes it out of the record, so that every process
-- abstains. If the log is damaged, it begins a new log, which every reader notices.
if redis.pcall('HGET', KEYS[1], 'header') ~= ARGV[1] then
  return {'lost'}
end
local record = redis.call('HMGET', KEYS[1], 'current', 'next', 'token')
local current, nxt = record[1] or '', record[2] or ''
if nxt ~= '' and redis.pcall('GET', KEYS[3]) ~= record[3] then
  -- The Rebuild has lost its lease. From now on adds are missing in its generation, so it
  -- must never be switched to.
  nxt = ''
  redis.call('HSET', KEYS[1], 'next', '')
end

-- The generations that the caller knows, by name. The positions of a piece stay in ARGV,
-- from first to last.
local known, keys_read, args_read = {}, 3, 7
local function key()
  keys_read = keys_read + 1
  return KEYS[keys_read]
end
local function arg()
  args_read = args_read + 1
  return ARGV[args_read]
end
while args_read < #ARGV do
  local generation = {checksums = key(), pieces = {}}
  known[arg()] = generation
  for i = 1, tonumber(arg()) do
    local bits, index, counter_bytes = key(), arg(), tonumber(arg())
    local counters, positions = counter_bytes > 0 and key(), tonumber(arg())
    generation.pieces[i] = {
      bits = bits, index = index, counters = counters, counter_bytes = counter_bytes,
      first = args_read + 1, last = args_read + positions,
    }
    args_read = args_read + positions
  end
end
if (current ~= '' and not known[current]) or (nxt ~= '' and not known[nxt]) then
  return {'stale', current, nxt}
end

-- count_up counts a position once more and returns how often it was set before.
local function count_up(counters, position)
  local n, place, byte, one = read_counter(counters, position)
  if n < FULL then
    redis.call('SETRANGE', counters, place, string.char(byte + one))
  end
  return n
end

-- counters_ready returns false if the counters of a piece have been lost. Those of a piece
-- without set bits need not be there yet, and are made.
local function counters_ready(piece, checksums)
  local length = redis.pcall('STRLEN', piece.counters)
  if length == 0 and redis.pcall('HGET', checksums, 'n' .. piece.index) == '0' then
    redis.call('SETRANGE', piece.counters, piece.counter_bytes - 1, '\0')
    return true
  end
  return length == piece.counter_bytes
end

-- set_bits sets the positions of a piece. It returns how many were clear, or nil for a
-- piece that is damaged.
local function set_bits(piece, checksums)
  local bits, counters, fresh, fresh_weight = piece.bits, piece.counters, 0, 0
  for i = piece.first, piece.last do
    local old = redis.pcall('SETBIT', bits, ARGV[i], 1)
    if type(old) ~= 'number' then
      return nil
    end
    if counters and (count_up(counters, tonumber(ARGV[i])) > 0) ~= (old == 1) then
      return nil
    end
    if old == 0 then
      fresh, fresh_weight = fresh + 1, fresh_weight + weight(tonumber(ARGV[i]))
    end
  end
  if fresh > 0 and not change_checksums(checksums, piece.index, fresh, fresh_weight) then
    return nil
  end
  return fresh
end

-- fill puts the ids into a generation. It returns false if that is damaged.
local function fill(generation, life)
  local checksums, total = generation.checksums, 0
  if type(redis.pcall('HGET', checksums, 'n')) ~= 'string' then
    return false
  end
  for _, piece in ipairs(generation.pieces) do
    if piece.counters and not counters_ready(piece, checksums) then
      return false
    end
    local fresh = set_bits(piece, checksums)
    if not fresh then
      return false
    end
    redis.call('PEXPIRE', piece.bits, life)
    if piece.counters then
      redis.call('PEXPIRE', piece.counters, life)
    end
    total = total + fresh
  end
  redis.call('PEXPIRE', checksums, life)
  return type(redis.pcall('HINCRBY', checksums, 'n', total)) == 'number'
end

if current ~= '' and not fill(known[current], ARGV[4]) then
  current = ''
  redis.call('HSET', KEYS[1], 'current', '')
end
if nxt ~= '' and not fill(known[nxt], ARGV[5]) then
  nxt = ''
  redis.call('HSET', KEYS[1], 'next', '')
end

local entry
for i = 1, #ARGV[2], 16 do
  entry = append(KEYS[2], ARGV[3], 'h', ARGV[2]:sub(i, i + 15))
end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
redis.call('PUBLISH', ARGV[6], ARGV[7])
return {'ok', entry, current, nxt}
