-- Helpers for several scripts. This file is put in front of them.

-- now returns the server's clock in ms.
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- whole writes a number as Redis reads it: tostring would give 1.7e+12.
local function whole(number)
  return string.format('%.0f', number)
end

-- number returns n and ms of an entry's ID, <ms>-<n>; nil if id is no ID.
local function number(id)
  local ms, n = tostring(id):match('^(%d+)-(%d+)$')
  return tonumber(n), tonumber(ms)
end

-- shorten deletes the entries of the log that are older than a time in ms, except the newest
-- of them: a reader that has read everything knows that entry.
local function shorten(log, from)
  local newest = redis.call('XREVRANGE', log, whole(math.max(from, 0)), '-', 'COUNT', 1)
  if #newest > 0 then
    redis.call('XTRIM', log, 'MINID', newest[1][1])
  end
end

