-- Reads and writes the clears of a cache: of everything (Clear), and of tags (ClearTags,
-- ExpireTags). The tags share 65,536 counters for clears and as many for expiries. A clear is
-- its time, by this server's clock in microseconds, and is later than all clears that the server
-- or the caller knows.
-- KEYS    1 hash: "c" the last Clear, "l" the latest clear of any kind, "f" the time from which
--         on the hash has every clear (earlier ones Redis may have lost), and by the number of
--         a counter its last clear
-- ARGV    1 "look"; "clear"; "tags", to clear counters; "keep", to put back clears that Redis has lost
--         2 the latest clear of any kind that the caller knows, 3 the last Clear that it knows
--         4 look: the l up to which the caller knows every counter, or more than any l if it wants
--           only the counters that it names; keep: the f that it knows, "0" if it may have missed clears
--         5 life of the key in ms, 6 channel, 7 message
--         8... look: counters that it wants in any case; tags: counters to clear; keep: counters,
--         each with its time
-- Returns {c, f, l, counter, time, ...}, all as text. look returns all counters if l is later than
--         ARGV[4], and an f of "0" if the hash is missing and the caller may know its clears.
--         Returns {} and does nothing if the key is of another type.
local limit = 2 ^ 53 -- from here on Lua's numbers are not exact
local function number(text)
  local n = tonumber(text)
  return n and n >= 0 and n < limit and math.floor(n) or 0
end
local function text(n)
  return string.format('%.0f', n)
end
local there = {}
for i, field in ipairs({'c', 'f', 'l'}) do
  there[i] = ours(redis.pcall('HGET', KEYS[1], field))
  if there[i] == nil then
    return {}
  elseif type(there[i]) == 'table' then
    return there[i]
  end
end
local c, f, l = number(there[1]), number(there[2]), number(there[3])
local how, changed = ARGV[1], {}
local latest = math.max(c, l, number(ARGV[2]), number(ARGV[3]))
local time = redis.call('TIME')
local now = math.max(latest + 1, time[1] * 1000000 + time[2])
if how == 'look' and f == 0 and tonumber(ARGV[4]) > 0 then
  return {text(c), '0', text(l)}
elseif how == 'clear' then
  c, l = now, now
elseif how == 'tags' then
  l = now
  for i = 8, #ARGV do
    changed[#changed + 1] = ARGV[i]
    changed[#changed + 1] = text(now)
  end
elseif how == 'keep' then
  c, l = math.max(c, number(ARGV[3])), latest
  for i = 8, #ARGV, 2 do
    if number(redis.call('HGET', KEYS[1], ARGV[i])) < number(ARGV[i + 1]) then
      changed[#changed + 1] = ARGV[i]
      changed[#changed + 1] = ARGV[i + 1]
    end
  end
  f = f > 0 and f or number(ARGV[4])
end
if f == 0 then -- the hash is complete from now on, with the clear that has created it
  f, l = (how == 'clear' or how == 'tags') and now - 1 or now, now
end
if text(c) ~= there[1] or text(f) ~= there[2] or text(l) ~= there[3] or #changed > 0 then
  -- PEXPIRE comes first, because it needs no memory: once a script has written, a server without memory
  -- lets it finish.
  redis.pcall('PEXPIRE', KEYS[1], ARGV[5])
  local set = redis.pcall('HSET', KEYS[1], 'c', text(c), 'f', text(f), 'l', text(l))
  local failed = type(set) == 'table'
  if failed and how ~= 'look' then -- a look goes on: its caller does not rely on a change that was not stored
    return set
  elseif not failed then
    for i = 1, #changed, 2 do
      redis.call('HSET', KEYS[1], changed[i], changed[i + 1])
    end
    redis.call('PEXPIRE', KEYS[1], ARGV[5])
  end
end
if how ~= 'look' then
  redis.pcall('PUBLISH', ARGV[6], ARGV[7])
end
local reply = {text(c), text(f), text(l)}
local counters = changed
if how == 'look' and l > tonumber(ARGV[4]) then
  counters = redis.call('HGETALL', KEYS[1])
elseif how == 'look' then
  counters = {}
  for i = 8, #ARGV do
    counters[#counters + 1] = ARGV[i]
    counters[#counters + 1] = redis.call('HGET', KEYS[1], ARGV[i]) or '0'
  end
end
for i = 1, #counters do
  reply[#reply + 1] = counters[i]
end
return reply
