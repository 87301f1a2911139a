-- Raises the epoch of a cache. No value with a lower one counts any more.
-- KEYS  1 epoch
-- ARGV  1 the epoch that the caller knows, which the server may have lost; 2 "clear"
--       to begin another, "keep" to leave it there; 3 life of the key in ms,
--       4 channel, 5 message
-- Gives the present epoch as text: the time of the last Clear, in microseconds. It is
--       empty if a key of another type stands there, and then nothing is done.
local limit = 2 ^ 53 -- from here on a number of Lua is not exact
local function number(text)
  local n = tonumber(text)
  return n and n >= 0 and n < limit and math.floor(n) or 0
end
local there = ours(redis.pcall('GETRANGE', KEYS[1], 0, 31))
if not there then
  return ''
elseif type(there) == 'table' then
  return there
end
local known = number(there)
local epoch = math.max(known, number(ARGV[1]))
if ARGV[2] == 'clear' then
  local time = redis.call('TIME')
  epoch = math.max(epoch + 1, time[1] * 1000000 + time[2])
end
local text = string.format('%.0f', epoch)
if ARGV[2] == 'clear' or epoch ~= known then
  redis.call('SET', KEYS[1], text, 'PX', ARGV[3])
end
if epoch ~= known then
  redis.call('PUBLISH', ARGV[4], ARGV[5])
end
return text
