-- Finds the entry of the log after which a Rebuild has to read.
-- KEYS  1 log
-- ARGV  1 how far back to go in ms
-- Gives {newest entry that is older, 0, "", what it holds}
--       {oldest entry, its age in ms, its field, what it holds}  the log does not go back so far
--       {}  there is no log
local clock = now()
local found = redis.pcall('XREVRANGE', KEYS[1], whole(math.max(clock - ARGV[1], 0)), '-', 'COUNT', 1)
if #found > 0 then
  return {found[1][1], 0, '', found[1][2][2]}
end
found = redis.pcall('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)
if #found == 0 then
  return {}
end
local _, ms = number(found[1][1])
return {found[1][1], math.max(0, clock - ms), unpack(found[1][2])}
