-- Finds where in the log a rebuild has to begin.
-- KEYS  1 log
-- ARGV  1 how far back to go in ms
-- Gives {newest entry older than that, 0}; or, if the log does not go back so far,
-- {its oldest entry, ms until that is so old}. {} if there is no log.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local from = now - ARGV[1]
local found = redis.pcall('XREVRANGE', KEYS[1], string.format('%.0f', from), '-', 'COUNT', 1)
if not found.err and #found > 0 then
  return {found[1][1], 0}
end
found = redis.pcall('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)
if found.err or #found == 0 then
  return {}
end
local oldest = found[1][1]
return {oldest, math.max(1, tonumber(oldest:match('^%d+')) - from)}
