-- Finds the entry of the log from which a Rebuild has to read.
-- KEYS  1 log
-- ARGV  1 how far back to go in ms
-- Gives {the newest entry that is older, 0}
--       {the oldest entry, ms until that is so old}  the log does not go back so far
--       {}  there is no log
local from = now() - ARGV[1]
local found = redis.pcall('XREVRANGE', KEYS[1], whole(from), '-', 'COUNT', 1)
if not found.err and #found > 0 then
  return {found[1][1], 0}
end
found = redis.pcall('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)
if found.err or #found == 0 then
  return {}
end
local oldest = found[1][1]
return {oldest, math.max(1, tonumber(oldest:match('^%d+')) - from)}
