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

-- number returns n of an entry's ID, <ms>-<n>, and ms; nil for what is no ID.
local function number(id)
  local ms, n = tostring(id):match('^(%d+)-(%d+)$')
  return tonumber(n), tonumber(ms)
end

-- shorten deletes the entries of the log from before a time in ms, but for the newest of
-- them: a reader who has read everything knows that one.
local function shorten(log, from)
  local newest = redis.call('XREVRANGE', log, whole(math.max(from, 0)), '-', 'COUNT', 1)
  if #newest > 0 then
    redis.call('XTRIM', log, 'MINID', newest[1][1])
  end
end

